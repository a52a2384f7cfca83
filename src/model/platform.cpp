#include "model/platform.h"

#include <algorithm>

#include "layout/logit_chunks.h"
#include "layout/product_scratch.h"
#include "layout/shards.h"
#include "layout/shares.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/mixed_matmul.h"
#include "ops/norm.h"
#include "ops/router.h"
#include "ops/token_layout.h"
#include "ops/units.h"

namespace mw {

// Of transports that sort choices which came from other ranks: units and their counts.
static int64_t unit_scratch(const RunSpec& run, const LayerSpec& layer, const Mesh& mesh, int64_t tokens,
                            DeviceKind device) {
  const MoeSpec& m = layer.moe;
  const int64_t automatic = device == DeviceKind::cpu ? 1 : kGpuRowChunks;
  const int64_t chunks = run.moe.row_chunks > 0 ? run.moe.row_chunks : automatic;
  const int64_t copies = m.experts + mesh.ep * replica_slots(run.moe, mesh.ep);
  const int64_t counts = (2 * mesh.ep + copies) * chunks * 8 + 64;
  return counts + std::max(unit_workspace_bytes(mesh.ep * tokens, m.top_k, copies, device),
                           index_workspace_bytes(mesh.ep, device));
}

// Runs of rows that a rank receives at most: from each rank of its EP group, for each of its experts.
static int64_t most_runs(const RunSpec& run, const MoeSpec& moe, const Mesh& mesh) {
  int64_t experts = moe.experts;
  if (can_share_experts(run, moe.experts, mesh.ep)) {
    const std::vector<int64_t> by_rank = experts_by_rank(run, moe.experts, mesh.ep);
    experts = *std::max_element(by_rank.begin(), by_rank.end());
  }
  return mesh.ep * (experts + replica_slots(run.moe, mesh.ep));
}

// Scratch that operators need at most for micro-batches of so many sequences.
static int64_t operator_scratch(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int64_t sequences,
                                int threads, DeviceKind device) {
  const int64_t seq_len = run.train.seq_len, tokens = sequences * seq_len, d = model.width;
  // Sums of the embedding's gradient by rows (engine/embedding_sums.h) have at most as many ids as there are rows.
  const int64_t ids =
      mesh.dp > 1 && !model.tie_embeddings ? std::max(tokens, vocab_part(model, mesh.tp, 0).count) : tokens;
  int64_t bytes =
              std::max(norm_workspace_bytes(tokens, d, device), embedding_workspace_bytes(ids, model.vocab, device)),
          expert_bytes = 0;
  const std::vector<TransportKind> transports = choose_transports(transport_names(run.moe.transport, model), mesh.ep);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const TransportTraits& traits = traits_of(transports[i]);
    const LayerSpec layer = widest_local_layer(model.layers[i], transports[i], run, mesh);
    const AttentionSpec& a = layer.attention;
    for (const AttentionSpec& local : local_attention_at_ends(model.layers[i].attention, mesh)) {
      const AttentionShape shape{
          sequences,      seq_len,           local.heads, local.kv_heads,
          local.head_dim, local.value_dim(), 1.0f,        run.data.document_mask || a.has_window(seq_len)};
      bytes = std::max(bytes, attention_workspace_bytes(shape, run.train.dtype, threads, device));
    }
    if (a.qk_norm != QkNorm::none)
      bytes = std::max(bytes, std::max(norm_workspace_bytes(tokens * a.heads, a.head_dim, device),
                                       norm_workspace_bytes(tokens, a.heads * a.head_dim, device)));
    if (a.is_latent())
      bytes = std::max(bytes, norm_workspace_bytes(tokens, std::max(a.latent.q_rank, a.latent.kv_rank), device));
    if (layer.feed_forward == FeedForwardKind::dense) continue;
    const int64_t c = halves_of(layer.activation);
    const MoeSpec& m = layer.moe;
    bytes = std::max(bytes, token_layout_workspace_bytes(tokens, m.top_k, m.experts, device));
    bytes = std::max(bytes, router_workspace_bytes(tokens, m.experts, device));
    bytes = std::max(bytes, index_workspace_bytes(most_runs(run, m, mesh), device));
    if (traits.by_node || traits.slices_experts)
      bytes = std::max(bytes, unit_scratch(run, layer, mesh, tokens, device));
    expert_bytes = std::max(expert_bytes, esmm_workspace_bytes(run.moe.expert_products, mesh.ep * tokens * m.top_k,
                                                               std::max(c * m.width, d), std::max(m.width, d), device,
                                                               run.expert_gradients));
    if (run.train.dtype == DType::bf16)
      bytes = std::max(bytes, mixed_matmul_workspace_bytes(tokens, m.experts, d, device));
  }
  const int64_t side = longest_product_side(model, run, mesh, transports);
  return std::max(bytes, matmul_workspace_bytes(side, side, device) + expert_bytes);
}

// Of a gateway's sorts, which run on the stream of the exchanges.
static int64_t relay_scratch(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int64_t tokens,
                             DeviceKind device) {
  int64_t bytes = 0;
  const std::vector<TransportKind> transports = choose_transports(transport_names(run.moe.transport, model), mesh.ep);
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (model.layers[i].feed_forward == FeedForwardKind::moe && traits_of(transports[i]).by_node)
      bytes = std::max(bytes, unit_scratch(run, model.layers[i], mesh, tokens, device));
  return bytes;
}

Platform measure_platform(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int threads,
                          DeviceKind device) {
  Platform platform;
  const bool on_cpu = device == DeviceKind::cpu;
  const auto raise = [](int64_t& most, int64_t bytes) { most = std::max(most, bytes); };
  // Fewer sequences can need more.
  for (const int64_t sequences : different_samples(run, run.train.micro_batches, mesh.dp)) {
    raise(platform.ops_workspace_bytes, operator_scratch(model, run, mesh, sequences, threads, device));
    if (!on_cpu)
      raise(platform.relay_workspace_bytes, relay_scratch(model, run, mesh, sequences * run.train.seq_len, device));
  }
  platform.native_bf16 = !on_cpu || cpu::matmul_traits().native_bf16;
  platform.one_packed_form = !on_cpu;
  if (!on_cpu) {
    platform.logit_elements = kGpuLogitElements;
    platform.logit_gradient_rows = kGpuLogitGradientRows;
    platform.row_chunks = kGpuRowChunks;
  }
  return platform;
}

void attach_workspaces(TensorStore& store, Stream& stream, Comm& ep) {
  const auto attach = [&](const char* row, Stream* to) {
    const TensorView scratch = store.fixed(row);
    if (to != nullptr) to->workspace().attach(scratch.data, static_cast<size_t>(scratch.bytes()));
  };
  attach("work.ops", &stream);
  Stream* const relay = ep.exchange_stream();
  if (store.has("work.relay_ops")) attach("work.relay_ops", relay);
  else if (relay != nullptr) relay->workspace().attach(nullptr, 0);
}

}  // namespace mw
