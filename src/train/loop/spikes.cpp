#include "train/loop/spikes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "comm/comm.h"
#include "config/learning_rate.h"

namespace mw {
namespace {

struct Spread {
  double mean = 0, deviation = 0;
};

// At least a millionth of the mean, so that equal values make no spike of rounding.
Spread spread_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::max(std::sqrt(squares / count), 1e-6 * std::abs(mean))};
}

void remember(std::vector<double>& values, double value, int64_t window) {
  values.push_back(value);
  if (std::ssize(values) > window) values.erase(values.begin(), values.end() - window);
}

}  // namespace

std::string find_spike(const TrainSpec& train, const StepHistory& history, const StepStats& stats) {
  const std::vector<double>*of_losses = &history.losses, *of_norms = &history.norms;
  if (train.skip_spikes == 0 || std::ssize(*of_losses) < train.spike_window / 2) return "";
  for (const auto& [name, values, now] :
       {std::tuple("loss", of_losses, stats.loss), std::tuple("gradient norm", of_norms, stats.grad_norm)}) {
    const Spread spread = spread_of(*values);
    if (now - spread.mean <= train.skip_spikes * spread.deviation) continue;
    return fmt::format("{} {:.4g} is {:.1f} standard deviations above the mean {:.4g} of the last {} steps", name, now,
                       (now - spread.mean) / spread.deviation, spread.mean, values->size());
  }
  return "";
}

std::string update_unless_spike(Engine& engine, const StepStats& stats, RunState& state) {
  const TrainSpec& train = engine.plan.run.train;
  std::string spike;
  if (train.skip_spikes > 0) {
    spike = broadcast_text(engine.world, find_spike(train, state.history, stats), 0);
    remember(state.history.losses, stats.loss, train.spike_window);
    remember(state.history.norms, stats.grad_norm, train.spike_window);
  }
  const int64_t step = state.step + 1;
  if (spike.empty()) apply_update(engine, stats, {learning_rate(train, step), step - state.skipped});
  else ++state.skipped;
  return spike;
}

}  // namespace mw
