#include "layout/product_scratch.h"

#include <algorithm>

#include "base/product_bytes.h"
#include "config/param_groups.h"
#include "layout/muon_plan.h"

namespace mw {
namespace {

int64_t longest_side_of(const AttentionSpec& a) {
  const int64_t side = a.heads * std::max(a.head_dim, a.value_dim());
  if (!a.is_latent()) return side;
  const LatentSpec& l = a.latent;
  return std::max({side, a.heads * (l.nope_dim + l.value_dim), l.q_rank, l.kv_rank + l.rope_dim});
}

int64_t longest_side_of_feed_forward(const LayerSpec& layer) {
  const int64_t halves = halves_of(layer.activation);
  if (layer.feed_forward == FeedForwardKind::dense) return halves * layer.dense_width;
  return std::max(halves * std::max(layer.moe.width, layer.moe.shared_width), layer.moe.experts);
}

// Of a router's product in a bf16 run, which converts so many rows at a time to fp32.
int64_t router_bytes(const MoeSpec& moe, int64_t width) {
  constexpr int64_t kRouterRows = 512;
  return kRouterRows * width * size_of(DType::f32) + cpu::matmul_workspace_bytes(moe.experts, width);
}

// The sums in fp32 of one expert's gradients, before they are rounded.
int64_t rounded_gradient_bytes(const LayerSpec& local, int64_t width) {
  const int64_t n = std::max(halves_of(local.activation) * local.moe.width, width),
                k = std::max(local.moe.width, width);
  return n * k * size_of(DType::f32) + 64;
}

}  // namespace

LayerSpec widest_local_layer(const LayerSpec& layer, TransportKind transport, const RunSpec& run, const Mesh& mesh) {
  LayerSpec local = local_layer(layer, {}, mesh, {});
  if (layer.feed_forward == FeedForwardKind::moe && traits_of(transport).slices_experts) {
    const std::vector<int64_t> widths = expert_widths(run, local.moe.width, mesh.ep);
    local.moe.width = *std::max_element(widths.begin(), widths.end());
  }
  return local;
}

int64_t longest_product_side(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                             const std::vector<TransportKind>& transports) {
  int64_t side = std::max(vocab_part(model, mesh.tp, 0).count, model.width);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec local = widest_local_layer(model.layers[i], transports[i], run, mesh);
    side = std::max({side, longest_side_of(local.attention), longest_side_of_feed_forward(local)});
  }
  if (run.train.optimizer != Optimizer::muon) return side;
  // Muon makes whole matrices orthogonal, whatever shards of them the rank holds.
  for (const ParamRow& row : run_params(model, run.train))
    if (row.muon) side = std::max({side, muon_shape(row).n, muon_shape(row).k});
  return side;
}

int64_t product_scratch_bytes(const ModelSpec& model, const RunSpec& run, const Mesh& mesh,
                              const std::vector<TransportKind>& transports, const Platform& platform) {
  if (platform.scratch != ScratchRule::on_cpu) return 0;
  int64_t router = 0, rounded = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].feed_forward != FeedForwardKind::moe) continue;
    const LayerSpec local = widest_local_layer(model.layers[i], transports[i], run, mesh);
    if (run.train.dtype == DType::bf16) router = std::max(router, router_bytes(local.moe, model.width));
    if (run.expert_gradients == DType::bf16) rounded = std::max(rounded, rounded_gradient_bytes(local, model.width));
  }
  const int64_t side = longest_product_side(model, run, mesh, transports);
  return std::max(cpu::matmul_workspace_bytes(side, side) + rounded, router);
}

}  // namespace mw
