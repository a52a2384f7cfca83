#include "layout/byte_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "layout/attention_scratch.h"
#include "layout/byte_rows.h"
#include "layout/logit_chunks.h"
#include "layout/product_scratch.h"
#include "layout/recompute.h"

namespace mw {
namespace {

constexpr int64_t kAlignment = 64;

// Tokens of a micro-batch: of the data-parallel rank, of this rank's shard, of the largest shard; those that MoE blocks
// route here, and the most that they route on any rank.
struct Tokens {
  int64_t batch = 0, own = 0, most = 0;
  int64_t routed = 0, most_routed = 0, group_routed = 0;  // group_routed: on all ranks of the EP group
};

ByteRow routed_row(std::string name, ByteKind kind, DType dtype, const RoutedRows& r, std::vector<int64_t> width) {
  std::vector<int64_t> shape = {r.committed};
  shape.insert(shape.end(), width.begin(), width.end());
  return {std::move(name), kind, dtype, std::move(shape), r.grows ? r.max : 0, r.mean};
}

// The latents before their norms; keys, values and compressed queries are built again from them.
void add_latent_attention(ByteRows& out, const std::string& at, const AttentionSpec& a, int64_t tokens, DType dtype) {
  const LatentSpec& l = a.latent;
  if (l.q_rank == 0) {
    out.add(at + "q", ByteKind::activation, dtype, {tokens, a.heads, a.head_dim});
  } else {
    out.add(at + "c_q", ByteKind::activation, dtype, {tokens, l.q_rank});
    out.add(at + "q_rstd", ByteKind::activation, DType::f32, {tokens});
  }
  out.add(at + "c_kv", ByteKind::activation, dtype, {tokens, l.kv_rank});
  out.add(at + "kv_rstd", ByteKind::activation, DType::f32, {tokens});
  out.add(at + "k_rope", ByteKind::activation, dtype, {tokens, l.rope_dim});
  out.add(at + "o", ByteKind::activation, dtype, {tokens, a.heads, l.value_dim});
  out.add(at + "lse", ByteKind::activation, DType::f32, {a.heads, tokens});
}

void add_attention(ByteRows& out, const std::string& at, const AttentionSpec& a, int64_t tokens, const RunSpec& run) {
  const DType dtype = run.train.dtype;
  if (a.is_latent()) {
    add_latent_attention(out, at, a, tokens, dtype);
    return;
  }
  if (keeps_norms(run.recompute)) {
    out.add(at + "q_in", ByteKind::activation, dtype, {tokens, a.heads, a.head_dim});
    out.add(at + "k_in", ByteKind::activation, dtype, {tokens, a.kv_heads, a.head_dim});
    if (a.clip_qkv > 0) out.add(at + "v_in", ByteKind::activation, dtype, {tokens, a.kv_heads, a.head_dim});
  }
  out.add(at + "q", ByteKind::activation, dtype, {tokens, a.heads, a.head_dim});
  out.add(at + "k", ByteKind::activation, dtype, {tokens, a.kv_heads, a.head_dim});
  out.add(at + "v", ByteKind::activation, dtype, {tokens, a.kv_heads, a.head_dim});
  out.add(at + "o", ByteKind::activation, dtype, {tokens, a.heads, a.head_dim});
  out.add(at + "lse", ByteKind::activation, DType::f32, {a.heads, tokens});
  if (a.qk_norm != QkNorm::none) {
    const bool per_head = a.qk_norm == QkNorm::per_head;
    out.add(at + "q_rstd", ByteKind::activation, DType::f32, {tokens * (per_head ? a.heads : 1)});
    out.add(at + "k_rstd", ByteKind::activation, DType::f32, {tokens * (per_head ? a.kv_heads : 1)});
  }
}

// What the byte table needs to know of a layer of this rank.
struct LocalLayer {
  LayerSpec spec;
  TransportKind transport = TransportKind::in_place;
  int64_t ep = 1, experts = 0;
  // By way of the node: of the EP group, ranks and experts of this node, experts of the others, and sources.
  int64_t near = 1, near_experts = 0;
  std::vector<int64_t> other_nodes = {};
  int64_t sources = 0;
  WeightGather gather = {};  // of the EP group
};

RoutedShape routed_shape(const LocalLayer& layer, const RunSpec& run, const Tokens& tokens) {
  return {layer.spec.moe, run,        tokens.routed,      tokens.most_routed, tokens.group_routed, layer.ep,
          layer.experts,  layer.near, layer.near_experts, layer.other_nodes,  layer.sources};
}

void set_nodes(LocalLayer& layer, const NodesSeen& nodes, const ExpertPlacement& placement) {
  const std::vector<int64_t> experts_of = placement.parts();
  const auto count = [&](const std::vector<int>& members) {
    int64_t experts = 0;
    for (const int member : members) experts += experts_of[static_cast<size_t>(member)];
    return experts;
  };
  layer.near = std::ssize(nodes.near);
  layer.near_experts = count(nodes.near);
  for (const std::vector<int>& members : nodes.others) layer.other_nodes.push_back(count(members));
  layer.sources = nodes.sources;
}

// A tensor of a layer's transport.
ByteRow transport_row(const std::string& at, ByteKind kind, const TransportTensor& tensor, int64_t hidden,
                      const LocalLayer& layer, const RunSpec& run, const Tokens& tokens) {
  using Type = TransportTensor::Type;
  using Width = TransportTensor::Width;
  const TransportTraits& traits = traits_of(layer.transport);
  const int64_t top_k = layer.spec.moe.top_k;
  const DType dtype = tensor.type == Type::run ? run.train.dtype : tensor.type == Type::f32 ? DType::f32 : DType::i32;
  if (tensor.rows == RowSet::choice)
    return {at + tensor.name, kind == ByteKind::routed ? ByteKind::activation : kind, dtype, {tokens.routed, top_k}};
  std::vector<int64_t> width;
  if (tensor.width == Width::hidden) width.push_back(hidden);
  if (tensor.width == Width::choices) width.push_back(traits.merges ? top_k : 1);
  return routed_row(at + tensor.name, kind, dtype, rows_of(tensor.rows, traits, routed_shape(layer, run, tokens)),
                    width);
}

// What a transport keeps of a micro-batch.
void add_kept(ByteRows& out, const std::string& at, int64_t width, const LocalLayer& layer, const RunSpec& run,
              const Tokens& tokens) {
  for (const TransportTensor& tensor : traits_of(layer.transport).kept)
    if (!tensor.for_replicas || replica_slots(run.moe, layer.ep) > 0)
      out.rows.push_back(transport_row(at, ByteKind::routed, tensor, width, layer, run, tokens));
}

void add_moe(ByteRows& out, const std::string& at, const ModelSpec& model, const LocalLayer& local, const RunSpec& run,
             const Tokens& of) {
  const LayerSpec& layer = local.spec;
  const MoeSpec& m = layer.moe;
  const DType dtype = run.train.dtype;
  const int64_t tokens = of.routed;
  const int64_t c = halves_of(layer.activation), choices = tokens * m.top_k;
  out.add(at + "logits", ByteKind::activation, DType::f32, {tokens, m.experts});
  out.add(at + "expert_choice", ByteKind::activation, DType::i32, {tokens, m.top_k});
  out.add(at + "gate_weights", ByteKind::activation, DType::f32, {tokens, m.top_k});
  out.add(at + "token_ids", ByteKind::activation, DType::i32, {choices});
  out.add(at + "expert_ids", ByteKind::activation, DType::i32, {choices});
  out.add(at + "row_weights", ByteKind::activation, DType::f32, {choices});
  out.add(at + "row_of", ByteKind::activation, DType::i32, {tokens, m.top_k});
  out.add(at + "rows_per_expert", ByteKind::activation, DType::i64, {m.experts});
  if (m.shared_width > 0) out.add(at + "shared.h", ByteKind::activation, dtype, {tokens, c, m.shared_width});
  if (m.shared_gate) out.add(at + "shared.gate", ByteKind::activation, DType::f32, {tokens});
  const RoutedRows r = traits_of(local.transport).expert_rows(routed_shape(local, run, of));
  out.rows.push_back(routed_row(at + "h", ByteKind::routed, dtype, r, {c, m.width}));
  add_kept(out, at, model.width, local, run, of);
}

void add_cache(ByteRows& out, int64_t layer, const AttentionSpec& a, const RunSpec& run) {
  const auto add = [&](const char* name, int64_t width) {
    out.add(cache_row(layer, name), ByteKind::activation, run.train.dtype,
            {run.sample.sequences, run.train.seq_len, a.kv_heads, width});
  };
  add("k", a.head_dim);
  add("v", a.value_dim());
}

void add_layer(ByteRows& out, const std::string& at, const ModelSpec& model, const LocalLayer& local,
               const RunSpec& run, const Tokens& tokens) {
  const LayerSpec& layer = local.spec;
  const DType dtype = run.train.dtype;
  out.add(at + "x", ByteKind::activation, dtype, {tokens.own, model.width});
  out.add(at + "attn_rstd", ByteKind::activation, DType::f32, {tokens.own});
  if (keeps_norms(run.recompute))
    for (const char* name : {"attn_in", "ffn_in"})
      out.add(at + name, ByteKind::activation, dtype, {tokens.own, model.width});
  add_attention(out, at, layer.attention, tokens.batch, run);
  if (run.train.qk_clip > 0) out.add(at + kLargestLogits, ByteKind::activation, DType::f32, {layer.attention.heads});
  out.add(at + "x_mid", ByteKind::activation, dtype, {tokens.own, model.width});
  out.add(at + "ffn_rstd", ByteKind::activation, DType::f32, {tokens.own});
  if (layer.feed_forward == FeedForwardKind::moe) add_moe(out, at, model, local, run, tokens);
  else
    out.add(at + "ffn.h", ByteKind::activation, dtype, {tokens.batch, halves_of(layer.activation), layer.dense_width});
}

// What a stage keeps besides its layers: the model's last output, and what it exchanges with its neighbours.
void add_stage(ByteRows& out, const StagePlan& stage, const std::vector<int64_t>& shape, DType dtype) {
  if (stage.receives) out.add(stage_row(stage.stage, "d_in"), ByteKind::exchange, dtype, shape);
  if (stage.sends) out.add(stage_row(stage.stage, "out"), ByteKind::exchange, dtype, shape);
  if (stage.has_head) {
    for (int64_t slot = 0; slot < stage.slots; ++slot) out.add(final_row(slot), ByteKind::activation, dtype, shape);
  } else {
    for (int64_t i = 0; i < stage.gradients; ++i)
      out.add(stage_row(stage.stage, "d_out", i), stage.sends ? ByteKind::exchange : ByteKind::activation, dtype,
              shape);
  }
}

// Scratch that all layers share, sized by the largest.
struct Widest {
  int64_t q = 0, d_q = 0, o = 0, k = 0, d_k = 0, v = 0, d_v = 0, half_head = 0, expert = 0, top_k = 0, experts = 0;
  int64_t q_rank = 0, kv_rank = 0, kv_heads = 0, rope = 0;  // of latent attention; kv_heads: all heads of both
  int64_t dense = 0;                                        // elements of an activated hidden state
  int64_t heads_with_sinks = 0;
  bool shared_gate = false;
  bool sums_over_heads = false;  // of all ranks of TP
  bool window = false;
  RoutedRows routed, outputs;
  std::vector<ByteRow> exchange;  // scratch of transports, and what they gather
  WeightSlots slots = {};
};

void widen(RoutedRows& into, const RoutedRows& r) {
  into.grows |= r.grows;
  into.committed = std::max(into.committed, r.committed);
  into.mean = std::max(into.mean, r.mean);
  into.max = std::max(into.max, r.max);
}

void widen_or_add(std::vector<ByteRow>& into, const ByteRow& row) {
  const auto same = std::find_if(into.begin(), into.end(), [&](const ByteRow& r) { return r.name == row.name; });
  if (same == into.end()) into.push_back(row);
  else widen(*same, row);
}

void widen_by_attention(Widest& widest, const AttentionSpec& a, bool keeps_norms) {
  const auto widen_to = [](int64_t& into, int64_t width) { into = std::max(into, width); };
  const int64_t q = a.heads * a.head_dim, values = a.kv_heads * a.value_dim();
  widen_to(widest.d_q, q);
  widen_to(widest.o, a.heads * a.value_dim());
  widen_to(widest.d_k, a.kv_heads * a.head_dim);
  widen_to(widest.d_v, values);
  widen_to(widest.half_head, a.rope_dim() / 2);
  if (a.sinks) widen_to(widest.heads_with_sinks, a.heads);
  if (!a.is_latent()) {
    if (keeps_norms) return;
    widen_to(widest.q, q);
    widen_to(widest.k, a.kv_heads * a.head_dim);
    if (a.clip_qkv > 0) widen_to(widest.v, values);
    return;
  }
  widen_to(widest.k, a.kv_heads * a.head_dim);
  widen_to(widest.v, values);
  if (a.latent.q_rank > 0) widen_to(widest.q, q);  // uncompressed queries are rotated where they are kept
  widen_to(widest.q_rank, a.latent.q_rank);
  widen_to(widest.kv_rank, a.latent.kv_rank);
  widen_to(widest.rope, a.latent.rope_dim);
  widen_to(widest.kv_heads, a.heads * (a.latent.nope_dim + a.latent.value_dim));
}

// width: of the hidden state.
void widen_by_layer(Widest& widest, const LocalLayer& local, int64_t width, const RunSpec& run, const Tokens& tokens) {
  const LayerSpec& layer = local.spec;
  widen_by_attention(widest, layer.attention, keeps_norms(run.recompute));
  if (layer.feed_forward == FeedForwardKind::dense) {
    widest.dense = std::max(widest.dense, tokens.batch * layer.dense_width);
    return;
  }
  const MoeSpec& m = layer.moe;
  widest.dense = std::max(widest.dense, tokens.routed * m.shared_width);
  widest.shared_gate |= m.shared_gate;
  widest.expert = std::max(widest.expert, m.width);
  widest.top_k = std::max(widest.top_k, m.top_k);
  widest.experts = std::max(widest.experts, m.experts);
  const TransportTraits& traits = traits_of(local.transport);
  const RoutedShape shape = routed_shape(local, run, tokens);
  widen(widest.routed, traits.expert_rows(shape));
  widen(widest.outputs, traits.output_rows == nullptr ? traits.expert_rows(shape) : traits.output_rows(shape));
  for (const TransportTensor& tensor : traits.scratch)
    widen_or_add(widest.exchange, transport_row("exchange.", ByteKind::exchange, tensor, width, local, run, tokens));
  if (!traits.gathers_weights) return;
  widest.slots.add(pieces_of(local.gather));
  widen_or_add(widest.exchange,
               {"cache.gradients", ByteKind::exchange, DType::f32, {local.gather.gradient_elements()}});
}

void add_workspace(ByteRows& out, const ModelSpec& model, const RunSpec& run, const Widest& w, const Tokens& tokens,
                   int64_t ops_bytes) {
  const DType dtype = run.train.dtype;
  const int64_t d = model.width;
  for (const char* name : {"normed", "branch", "d_branch"})
    out.add(fmt::format("work.{}", name), ByteKind::workspace, dtype, {tokens.own, d});
  const auto by_token = [&](const char* name, int64_t width) {
    if (width > 0) out.add(fmt::format("work.{}", name), ByteKind::workspace, dtype, {tokens.batch * width});
  };
  by_token("q", w.q);
  by_token("d_q", w.d_q);
  by_token("d_o", w.o);
  by_token("k", w.k);
  by_token("d_k", w.d_k);
  by_token("d_v", w.d_v);
  by_token("v", w.v);
  by_token("latent_q", w.q_rank);
  by_token("latent_kv", w.kv_rank);
  by_token("d_latent", std::max(w.q_rank, w.kv_rank));
  by_token("kv_a", w.kv_rank + w.rope);
  by_token("kv_heads", w.kv_heads);
  out.add("work.rope_cos", ByteKind::workspace, DType::f32, {run.train.seq_len, w.half_head});
  out.add("work.rope_sin", ByteKind::workspace, DType::f32, {run.train.seq_len, w.half_head});
  if (w.window) out.add("work.first_keys", ByteKind::workspace, DType::i32, {tokens.batch});
  if (w.heads_with_sinks > 0)
    out.add("work.delta", ByteKind::workspace, DType::f32, {w.heads_with_sinks, tokens.batch});
  if (w.dense > 0) out.add("work.dense_a", ByteKind::workspace, dtype, {w.dense});
  if (w.experts > 0) {
    out.add("work.d_gate", ByteKind::workspace, DType::f32, {tokens.routed * w.top_k});
    out.add("work.d_logits", ByteKind::workspace, DType::f32, {tokens.routed * w.experts});
    if (w.shared_gate) out.add("work.d_shared_gate", ByteKind::workspace, DType::f32, {tokens.routed});
    out.rows.push_back(routed_row("work.expert_a", ByteKind::workspace, dtype, w.routed, {w.expert}));
    out.rows.push_back(routed_row("work.expert_y", ByteKind::workspace, dtype, w.outputs, {d}));
    out.rows.push_back(routed_row("work.row_weights", ByteKind::workspace, DType::f32, w.routed, {}));
    out.rows.push_back(routed_row("work.d_row_weights", ByteKind::workspace, DType::f32, w.routed, {}));
    out.rows.insert(out.rows.end(), w.exchange.begin(), w.exchange.end());
    if (w.slots.count() > 0) out.add(kWeightSlots, ByteKind::exchange, DType::u8, {w.slots.all_bytes()});
  }
  out.add("work.ops", ByteKind::workspace, DType::u8, {std::max<int64_t>(ops_bytes, 64)});
}

// Where tokens are gathered over TP, and what was computed for all of them goes back to their shards; numbers of each
// token, for queries and for keys, that are summed.
void add_gathered(ByteRows& out, const ModelSpec& model, DType dtype, const Widest& w, const Tokens& tokens,
                  const Mesh& mesh) {
  const int tp = mesh.tp;
  if (tp == 1) return;
  std::vector<const char*> gathered = {"whole_in", "whole_d_out", "whole_out"};
  if (mesh.ted && w.experts > 0) gathered.push_back("whole_branch");
  for (const char* name : gathered)
    out.add(fmt::format("work.{}", name), ByteKind::exchange, dtype, {tokens.most * tp, model.width});
  out.add("work.shard_order", ByteKind::exchange, DType::i32, {tokens.most, tp});
  if (!w.sums_over_heads) return;
  out.add("work.head_sums", ByteKind::exchange, DType::f32, {2, tokens.batch});
  out.add("work.head_sums_of_ranks", ByteKind::exchange, DType::f32, {tp, 2, tokens.batch});
}

void add_head_workspace(ByteRows& out, const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                        const MeshCoords& coords, const Tokens& tokens, const Platform& platform) {
  const DType dtype = run.train.dtype;
  const int64_t own = vocab_part(model, mesh.tp, coords.tp).count, most = vocab_part(model, mesh.tp, 0).count;
  const int64_t chunk = logit_chunk_rows(most, tokens.batch, platform.logit_elements);
  out.add("work.d_x", ByteKind::workspace, dtype, {tokens.own, model.width});
  out.add("work.final_rstd", ByteKind::workspace, DType::f32, {tokens.own});
  const int64_t gradients = logit_gradient_rows(chunk, tokens.batch, platform.logit_gradient_rows);
  // Gradients take the place of logits of their dtype.
  const int64_t logits = run.logits == DType::bf16 ? gradients : chunk;
  out.add("work.logits", ByteKind::workspace, run.logits, {logits, own});
  if (dtype != run.logits) out.add("work.d_logits_bf16", ByteKind::workspace, DType::bf16, {gradients, own});
  out.add("work.token_loss", ByteKind::workspace, DType::f32, {tokens.batch});
  if (mesh.tp == 1) return;
  out.add("work.own_statistics", ByteKind::exchange, DType::f32, {logits, 3});  // of each row's softmax
  out.add("work.statistics", ByteKind::exchange, DType::f32, {mesh.tp, logits, 3});
}

}  // namespace

const char* name_of(ByteKind kind) {
  switch (kind) {
    case ByteKind::master: return "master weights";
    case ByteKind::gradient: return "gradients";
    case ByteKind::moment: return "optimizer";
    case ByteKind::packed: return "packed weights";
    case ByteKind::activation: return "activations";
    case ByteKind::routed: return "routed rows";
    case ByteKind::workspace: return "workspace";
    case ByteKind::exchange: return "exchange";
  }
  return "?";
}

int64_t ByteRow::bytes() const {
  int64_t n = size_of(dtype);
  for (const int64_t extent : shape) n *= extent;
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

void widen(ByteRow& into, const ByteRow& row) {
  MW_CHECK(into.dtype == row.dtype && into.shape.size() == row.shape.size(), "{} cannot serve {}", into.name, row.name);
  for (size_t i = 0; i < row.shape.size(); ++i) into.shape[i] = std::max(into.shape[i], row.shape[i]);
  into.max_rows = std::max(into.max_rows, row.max_rows);
  if (into.max_rows > 0) into.max_rows = std::max(into.max_rows, into.shape[0]);  // beside a row that does not grow
  into.mean_rows = std::max(into.mean_rows, row.mean_rows);
}

NodeMap node_map(const MeshSpec& mesh, const Platform& platform) {
  return mesh.ranks_per_node > 0 ? NodeMap{mesh.ranks_per_node, {}} : platform.nodes;
}

int64_t tokens_of_ep_group(std::span<const int64_t> samples, int64_t seq_len, const Mesh& mesh,
                           const MeshCoords& coords) {
  int64_t tokens = 0;
  for (const int rank : group_of(mesh, MeshAxis::ep, rank_of(mesh, coords))) {
    const MeshCoords member = coords_of(mesh, rank);
    tokens += routed_tokens(mesh, member, samples[static_cast<size_t>(member.dp)] * seq_len).count;
  }
  return tokens;
}

// Of equal shares each rank counts with the most, as TP rounds up.
static int64_t tokens_of_group(const RunSpec& run, const Mesh& mesh, const MeshCoords& coords, int64_t most_routed) {
  if (run.mesh.shares.empty()) return mesh.ep * most_routed;
  return tokens_of_ep_group(samples_by_rank(run, run.train.micro_batches, mesh.dp), run.train.seq_len, mesh, coords);
}

NodesSeen nodes_of_ep_group(const Mesh& mesh, const MeshCoords& coords, const NodeMap& nodes) {
  const int rank = rank_of(mesh, coords);
  const std::vector<int> group = group_of(mesh, MeshAxis::ep, rank);
  const auto member = std::find(group.begin(), group.end(), rank) - group.begin();
  return nodes_seen(make_islands(group, nodes), static_cast<int>(member));
}

WeightGather weight_gather_of(TransportKind transport, const LayerSpec& local, int64_t width, const RunSpec& run,
                              const ExpertPlacement& placement, const Platform& platform) {
  const TransportTraits& traits = traits_of(transport);
  if (!traits.gathers_weights) return {};
  return make_weight_gather(placement, run.moe.row_chunks > 0 ? run.moe.row_chunks : platform.row_chunks,
                            expert_forms(local, width, run.train.dtype, is_recomputed(run.recompute, "h"), platform));
}

std::string saved_prefix(int64_t layer, int64_t slot) {
  return slot == 0 ? fmt::format("act.{}.", layer) : fmt::format("act.{}#{}.", layer, slot);
}

std::string cache_row(int64_t layer, const std::string& name) {
  return fmt::format("{}{}.{}", kCacheRows, layer, name);
}

std::string final_row(int64_t slot) { return slot == 0 ? "act.final_x" : fmt::format("act.final_x#{}", slot); }

std::string stage_row(int stage, const std::string& name, int64_t slot) {
  return slot == 0 ? fmt::format("stage.{}.{}", stage, name) : fmt::format("stage.{}.{}#{}", stage, name, slot);
}

std::vector<ByteRow> activation_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                                      const MeshCoords& coords, const std::vector<StagePlan>& stages,
                                      const std::vector<ExpertPlacement>& placements,
                                      const std::vector<TransportKind>& transports, const Platform& platform) {
  ByteRows out;
  const LocalBatch local = make_local_batch(run, mesh.dp, coords.dp);
  const int64_t batch = local.tokens();
  const int64_t most_routed = routed_tokens(mesh, {}, local.most_tokens()).count;
  const Tokens tokens{batch,
                      block_of(batch, mesh.tp, coords.tp).count,
                      block_of(batch, mesh.tp, 0).count,
                      routed_tokens(mesh, coords, batch).count,
                      most_routed,
                      tokens_of_group(run, mesh, coords, most_routed)};
  // All micro-batches of a step are read at once: its valid labels are counted before the first forward.
  out.add("data.ids", ByteKind::activation, DType::i32, {run.train.micro_batches, batch});
  out.add("data.labels", ByteKind::activation, DType::i32, {run.train.micro_batches, batch});
  if (run.data.document_mask)
    out.add("data.document_starts", ByteKind::activation, DType::i32, {run.train.micro_batches, batch});
  Widest widest;
  widest.slots.wanted = run.moe.weight_slots;
  for (const StagePlan& stage : stages) {
    for (int64_t i = stage.first_layer; i < stage.end_layer; ++i) {
      const auto index = static_cast<size_t>(i);
      LocalLayer layer{local_layer(model.layers[index], placements[index], mesh, coords), transports[index], mesh.ep};
      if (layer.spec.feed_forward == FeedForwardKind::moe)
        layer.experts = std::ssize(placements[index].experts_of(coords.ep));
      layer.gather = weight_gather_of(layer.transport, layer.spec, model.width, run, placements[index], platform);
      if (traits_of(layer.transport).by_node)
        set_nodes(layer, nodes_of_ep_group(mesh, coords, node_map(run.mesh, platform)), placements[index]);
      for (int64_t slot = 0; slot < stage.slots; ++slot)
        add_layer(out, saved_prefix(i, slot), model, layer, run, tokens);
      if (run.sample.tokens > 0) add_cache(out, i, layer.spec.attention, run);
      widen_by_layer(widest, layer, model.width, run, tokens);
      widest.window |= layer.spec.attention.has_window(run.train.seq_len);
      widest.sums_over_heads |= norms_span_ranks(layer.spec.attention, mesh.tp);
    }
    add_stage(out, stage, {tokens.own, model.width}, run.train.dtype);
  }
  out.rows = share_recomputed(run.recompute, std::move(out.rows));
  add_workspace(out, model, run, widest, tokens,
                std::max({platform.ops_workspace_bytes, attention_scratch_bytes(model, run, mesh, platform),
                          product_scratch_bytes(model, run, mesh, transports, platform)}));
  if (platform.relay_workspace_bytes > 0)
    out.add("work.relay_ops", ByteKind::workspace, DType::u8, {platform.relay_workspace_bytes});
  add_gathered(out, model, run.train.dtype, widest, tokens, mesh);
  if (stages.back().has_head) add_head_workspace(out, model, run, mesh, coords, tokens, platform);
  return out.rows;
}

ByteSummary summarise(const std::vector<ByteRow>& rows) {
  ByteSummary s;
  for (const ByteRow& row : rows) {
    if (row.on_host) {
      s.on_host += row.bytes();
      continue;
    }
    s.by_kind[static_cast<int>(row.kind)] += row.bytes();
    if (row.max_rows == 0) {
      s.fixed += row.bytes();
      continue;
    }
    int64_t row_bytes = size_of(row.dtype);
    for (size_t i = 1; i < row.shape.size(); ++i) row_bytes *= row.shape[i];
    s.routed_mean += row.mean_rows * row_bytes;
    s.routed_committed += row.shape[0] * row_bytes;
    s.routed_max += row.max_rows * row_bytes;
  }
  return s;
}

}  // namespace mw
