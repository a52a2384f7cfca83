#include "layout/share_watch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "layout/shares.h"

namespace mw {
namespace {

constexpr double kLeastGain = 0.03;
constexpr size_t kFirstLooks = 5, kLaterLooks = 20;
constexpr int64_t kLeastSteps = 100;

}  // namespace

ShareWatch::ShareWatch(std::vector<int64_t> shares, std::vector<int64_t> most, int64_t step)
    : shares_(std::move(shares)), most_(std::move(most)), begun_(step), window_(kFirstLooks) {}

// By rank.
std::vector<double> ShareWatch::medians() const {
  std::vector<double> out, of_rank(looks_.size());
  for (size_t rank = 0; rank < shares_.size(); ++rank) {
    std::transform(looks_.begin(), looks_.end(), of_rank.begin(), [&](const Look& look) { return look.seconds[rank]; });
    const auto middle = of_rank.begin() + std::ssize(of_rank) / 2;
    std::nth_element(of_rank.begin(), middle, of_rank.end());
    out.push_back(*middle);
  }
  return out;
}

std::optional<std::vector<int64_t>> ShareWatch::look(std::span<const double> seconds, double step_seconds,
                                                     int64_t step) {
  looks_.push_back({{seconds.begin(), seconds.end()}, step_seconds});
  if (looks_.size() > window_) looks_.erase(looks_.begin());
  if (looks_.size() < window_ || step - begun_ < kLeastSteps) return std::nullopt;
  const int64_t units = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  std::vector<int64_t> next = divide_by_speed(units, medians(), most_);
  const bool agree = std::all_of(looks_.begin(), looks_.end(), [&](const Look& look) {
    const double gain = time_of_slowest(shares_, look.seconds) - time_of_slowest(next, look.seconds);
    return gain >= kLeastGain * look.step_seconds;
  });
  return agree ? std::optional(std::move(next)) : std::nullopt;
}

void ShareWatch::begin(std::vector<int64_t> shares, int64_t step) {
  shares_ = std::move(shares);
  begun_ = step;
  looks_.clear();
  window_ = kLaterLooks;
}

}  // namespace mw
