#include "train/loop/load_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace mw {
namespace {

constexpr double kNearlyAll = 0.9;

// The smallest number of experts that together got nearly all choices, and the share that they got.
struct Favourites {
  int64_t experts = 0;
  double share = 0;
};

Favourites find_favourites(std::vector<double> load) {
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  if (sum <= 0) return {};
  std::sort(load.begin(), load.end(), std::greater<>());
  Favourites found;
  for (const double count : load) {
    ++found.experts;
    found.share += count / sum;
    if (found.share >= kNearlyAll) break;
  }
  return found;
}

bool is_collapsed(const Favourites& favourites, const MoeSpec& moe) {
  return favourites.experts > 0 && favourites.experts <= std::max(moe.top_k, moe.experts / 4) &&
         2 * favourites.experts <= moe.experts;
}

}  // namespace

LoadWatch::LoadWatch(const ModelSpec& model, const RunSpec& run)
    : aux_loss_coef_(aux_loss_coef(run, model)), bias_rate_(run.moe.bias_rate) {
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    if (layer.feed_forward == FeedForwardKind::moe) layers_.push_back({i, layer.moe});
  }
}

std::string LoadWatch::remedy(const MoeSpec& moe) const {
  if (moe.selection_bias)
    return fmt::format("raise moe.bias_rate (now {}) or moe.aux_loss_coef (now {})", bias_rate_, aux_loss_coef_);
  if (aux_loss_coef_ > 0) return fmt::format("raise moe.aux_loss_coef (now {})", aux_loss_coef_);
  return fmt::format("the load-balance loss is off: set moe.aux_loss_coef={}", kNativeAuxLossCoef);
}

std::string LoadWatch::observe(int64_t step, const std::vector<std::vector<double>>& load) {
  const Layer* worst = nullptr;
  Favourites favourites;
  int64_t collapsed = 0;
  for (size_t l = 0; l < layers_.size() && l < load.size(); ++l) {
    const Favourites found = find_favourites(load[l]);
    Layer& layer = layers_[l];
    layer.collapsed_steps = is_collapsed(found, layer.moe) ? layer.collapsed_steps + 1 : 0;
    if (layer.collapsed_steps < kPatience) continue;
    ++collapsed;
    if (worst != nullptr && worst->collapsed_steps >= layer.collapsed_steps) continue;
    worst = &layer;
    favourites = found;
  }
  if (worst == nullptr || worst->collapsed_steps < warn_at_) return "";
  warn_at_ = 10 * worst->collapsed_steps;
  return fmt::format(
      "step {}: layer {}{}: {} of {} experts have taken at least {:.0f} % of the tokens in each of the "
      "last {} steps; {}",
      step, worst->number, collapsed > 1 ? fmt::format(" (and {} more)", collapsed - 1) : "", favourites.experts,
      worst->moe.experts, 100 * kNearlyAll, worst->collapsed_steps, remedy(worst->moe));
}

}  // namespace mw
