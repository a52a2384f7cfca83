#include "engine/qk_clip.h"

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "ops/muon.h"

namespace mw {
namespace {

bool is_query(std::string_view tensor) { return tensor == "wq" || tensor == "wq_b" || tensor == "bq"; }

// Multiplies `count` of the elements that this rank owns: a decay without an update, whose gradient has no weight.
void multiply_owned(Stream& stream, Parameter& p, int64_t at, int64_t count, double factor) {
  const TensorView copy = p.owned_copy();
  muon_update(stream, 1.0f, static_cast<float>(1.0 - factor), 0.0f, p.owned_grad().slice(at, count),
              p.owned_master().slice(at, count), copy.data == nullptr ? copy : copy.slice(at, count));
}

}  // namespace

std::vector<RowFactor> clipped_rows(const AttentionSpec& a, std::string_view tensor, std::span<const double> logits_H,
                                    double limit) {
  std::vector<RowFactor> rows;
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t g = 0; g < a.kv_heads; ++g) {
    const auto first = logits_H.begin() + g * group;
    const double largest = *std::max_element(first, first + group);
    if (largest <= limit) continue;
    const double factor = limit / largest, root = std::sqrt(factor);
    const LatentSpec& l = a.latent;
    if (is_query(tensor)) {
      if (a.is_latent()) {
        rows.push_back({g * a.head_dim, l.nope_dim, root});
        rows.push_back({g * a.head_dim + l.nope_dim, l.rope_dim, factor});
      } else {
        rows.push_back({g * group * a.head_dim, group * a.head_dim, root});
      }
    } else if (tensor == "wk" || tensor == "bk") {
      rows.push_back({g * a.head_dim, a.head_dim, root});
    } else if (tensor == "wkv_b") {
      rows.push_back({g * (l.nope_dim + l.value_dim), l.nope_dim, root});
    }
  }
  return rows;
}

void reset_largest_logits(Engine& engine) {
  for (int64_t layer = 0; layer < engine.plan.model.layer_count(); ++layer)
    for (const TensorView& largest_H : engine.model->largest_logits(layer)) fill_zero(engine.stream, largest_H);
}

std::vector<std::vector<double>> gather_largest_logits(Engine& engine) {
  const Plan& plan = engine.plan;
  std::vector<double> all;  // of the heads of all layers
  for (int64_t layer = 0; layer < plan.model.layer_count(); ++layer) {
    const AttentionSpec& attention = plan.model.layers[static_cast<size_t>(layer)].attention;
    const auto own = static_cast<int64_t>(all.size()) + head_shard(attention, plan.mesh.tp, plan.coords.tp).heads.begin;
    all.resize(all.size() + static_cast<size_t>(attention.heads));
    for (const TensorView& largest_H : engine.model->largest_logits(layer)) {
      const std::vector<float> values = read_values<float>(engine.stream, largest_H);
      for (size_t i = 0; i < values.size(); ++i) {
        double& largest = all[static_cast<size_t>(own) + i];
        largest = std::max(largest, static_cast<double>(values[i]));
      }
    }
  }
  if (plan.run.fault != Fault::local_largest_logits) engine.world.all_reduce_max(std::span(all));
  std::vector<std::vector<double>> by_layer;
  auto at = all.begin();
  for (const LayerSpec& layer : plan.model.layers) {
    by_layer.emplace_back(at, at + layer.attention.heads);
    at += layer.attention.heads;
  }
  return by_layer;
}

void clip_queries_and_keys(Engine& engine, const StepStats& stats, Parameter& p) {
  const double limit = engine.plan.run.train.qk_clip;
  if (limit == 0 || p.owned.count == 0 || p.row.lr_scale == 0) return;  // a scale of 0 keeps a parameter
  const std::string prefix = fmt::format("layers.{}.attn.", p.row.layer);
  if (!p.row.name.starts_with(prefix)) return;
  const auto layer = static_cast<size_t>(p.row.layer);
  const std::vector<int64_t>& shape = p.row.shape;
  for (const RowFactor& rows : clipped_rows(engine.plan.model.layers[layer].attention, p.row.name.substr(prefix.size()),
                                            stats.largest_logits[layer], limit))
    for (const HeldSlice& own : held_slices(shape, p.pieces, p.owned))
      for_each_shared_run(shape, whole_box(shape, 0, rows.begin, rows.count), own.slice,
                          [&](int64_t, int64_t at, int64_t count) {
                            multiply_owned(engine.stream, p, own.at + at, count, rows.factor);
                          });
}

}  // namespace mw
