#include "model/auxiliary.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace mw {

int64_t statistics_size(const MoeSpec& moe) { return 3 * moe.experts + 3; }

// As they follow each other in a vector.
static std::array<std::span<double>, 6> parts_of(LoadStatistics& s) {
  return {s.counts, s.prob_sums, {&s.z_sum, 1}, {&s.dropped, 1}, {&s.sequence_sum, 1}, s.counted};
}

void append_statistics(LoadStatistics layer, std::vector<double>& to) {
  for (const std::span<double> part : parts_of(layer)) to.insert(to.end(), part.begin(), part.end());
}

LoadStatistics take_statistics(const MoeSpec& moe, std::span<const double>& from) {
  LoadStatistics layer(moe.experts);
  for (const std::span<double> part : parts_of(layer)) {
    std::copy_n(from.begin(), part.size(), part.begin());
    from = from.subspan(part.size());
  }
  return layer;
}

Auxiliary::Auxiliary(const Plan& plan)
    : model_(plan.model),
      coef_(aux_loss_coef(plan.run, plan.model)),
      z_coef_(plan.run.moe.z_loss_coef),
      layers_(static_cast<double>(plan.model.moe_layer_count())),
      scope_(aux_scope(plan.run, plan.model)),
      seq_len_(static_cast<double>(plan.run.train.seq_len)) {
  if (scope_ != AuxScope::model) return;
  const MoeSpec* first = nullptr;
  for (const LayerSpec& layer : model_.layers) {
    if (layer.feed_forward != FeedForwardKind::moe) continue;
    if (first == nullptr) first = &layer.moe;
    if (layer.moe.experts != first->experts)
      fail(Exit::config,
           fmt::format("moe.aux_scope = \"model\" needs the same number of experts in every MoE layer, got {} and {}",
                       first->experts, layer.moe.experts),
           "set moe.aux_scope = \"layer\"");
  }
}

const MoeSpec& Auxiliary::moe_of(int64_t layer) const { return model_.layers[static_cast<size_t>(layer)].moe; }

std::vector<double> Auxiliary::mean_load(std::span<const int64_t> layers, std::span<const double> summed,
                                         int64_t tokens) const {
  if (layers.empty()) return {};
  std::vector<double> mean(static_cast<size_t>(moe_of(layers.front()).experts));
  for (const int64_t layer : layers) {
    const LoadStatistics sums = take_statistics(moe_of(layer), summed);
    for (size_t e = 0; e < mean.size(); ++e) mean[e] += sums.counted[e] / static_cast<double>(tokens) / layers_;
  }
  return mean;
}

AuxLosses Auxiliary::losses(std::span<const int64_t> layers, std::span<const double> summed, int64_t tokens) const {
  AuxLosses out;
  if (layers.empty()) return out;
  const auto total = static_cast<double>(tokens);
  const bool whole_model = scope_ == AuxScope::model;
  std::vector<double> mean_p(whole_model ? static_cast<size_t>(moe_of(layers.front()).experts) : 0);
  std::span<const double> left = summed;
  for (const int64_t layer : layers) {
    const MoeSpec& moe = moe_of(layer);
    const LoadStatistics sums = take_statistics(moe, left);
    out.z += sums.z_sum / total / layers_;
    const double factor = static_cast<double>(moe.experts) / static_cast<double>(moe.top_k);
    if (scope_ == AuxScope::sequence) out.aux += factor * sums.sequence_sum * seq_len_ / total;
    for (size_t e = 0; e < sums.counts.size(); ++e) {
      if (whole_model) mean_p[e] += sums.prob_sums[e] / total / layers_;
      if (scope_ == AuxScope::layer) out.aux += factor * sums.counts[e] * sums.prob_sums[e] / total / total / layers_;
    }
  }
  if (whole_model) {
    const std::vector<double> mean_f = mean_load(layers, summed, tokens);
    for (size_t e = 0; e < mean_p.size(); ++e) out.aux += static_cast<double>(mean_p.size()) * mean_f[e] * mean_p[e];
  }
  out.weighted = coef_ * out.aux + z_coef_ * out.z;
  return out;
}

AuxGradient Auxiliary::gradient(int64_t layer, std::span<const double> counts, std::span<const double> mean_load,
                                int64_t tokens, double seed) const {
  const MoeSpec& moe = moe_of(layer);
  const auto experts = static_cast<size_t>(moe.experts);
  const auto total = static_cast<double>(tokens);
  AuxGradient out;
  out.z_scale = static_cast<float>(seed * z_coef_ / total / layers_);
  if (scope_ == AuxScope::sequence) {
    out.d_sequence_sum = static_cast<float>(seed * coef_ * static_cast<double>(experts) /
                                            static_cast<double>(moe.top_k) * seq_len_ / total);
    return out;
  }
  out.d_prob.assign(coef_ > 0 ? experts : 0, 0.0f);
  for (size_t e = 0; e < out.d_prob.size(); ++e) {
    const double f = scope_ == AuxScope::model ? mean_load[e] : counts[e] / total / static_cast<double>(moe.top_k);
    out.d_prob[e] = static_cast<float>(seed * coef_ * static_cast<double>(experts) * f / total / layers_);
  }
  return out;
}

}  // namespace mw
