#include "layout/share_watch.h"

#include <numeric>
#include <utility>

#include "layout/shares.h"

namespace mw {
namespace {

constexpr double kLeastGain = 0.03;
constexpr int64_t kLooks = 3, kLeastSteps = 100;

}  // namespace

ShareWatch::ShareWatch(std::vector<int64_t> shares, std::vector<int64_t> most, int64_t step)
    : shares_(std::move(shares)), most_(std::move(most)), begun_(step) {}

std::optional<std::vector<int64_t>> ShareWatch::better_shares(std::span<const double> seconds,
                                                              double step_seconds) const {
  const int64_t units = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  std::vector<int64_t> next = divide_by_speed(units, seconds, most_);
  const double gain = time_of_slowest(shares_, seconds) - time_of_slowest(next, seconds);
  return gain < kLeastGain * step_seconds ? std::nullopt : std::optional(std::move(next));
}

std::optional<std::vector<int64_t>> ShareWatch::look(std::span<const double> seconds, double step_seconds,
                                                     int64_t step) {
  if (!better_shares(seconds, step_seconds)) {
    looks_ = 0;
    return std::nullopt;
  }
  if (looks_++ == 0) {
    seconds_.assign(seconds.size(), 0);
    step_seconds_ = 0;
  }
  const auto looks = static_cast<double>(looks_);
  for (size_t i = 0; i < seconds_.size(); ++i) seconds_[i] += (seconds[i] - seconds_[i]) / looks;
  step_seconds_ += (step_seconds - step_seconds_) / looks;
  if (looks_ < kLooks || step - begun_ < kLeastSteps) return std::nullopt;
  return better_shares(seconds_, step_seconds_);
}

void ShareWatch::begin(std::vector<int64_t> shares, int64_t step) {
  shares_ = std::move(shares);
  begun_ = step;
  looks_ = 0;
}

}  // namespace mw
