#include "layout/share_watch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/median.h"
#include "layout/shares.h"

namespace mw {
namespace {

constexpr double kLeastGain = 0.03, kLargeGain = 0.15;
constexpr size_t kFirstLooks = 5, kLaterLooks = 20;
constexpr size_t kLooksWithDoubts = 6, kDoubts = 1;
constexpr int64_t kLeastSteps = 100;

}  // namespace

ShareWatch::ShareWatch(std::vector<int64_t> shares, std::vector<int64_t> most, int64_t step)
    : shares_(std::move(shares)), most_(std::move(most)), begun_(step) {}

std::optional<std::vector<int64_t>> ShareWatch::agreed(size_t looks, size_t doubts, double gain) const {
  if (looks_.size() < looks) return std::nullopt;
  const std::span<const Look> last = std::span(looks_).last(looks);
  std::vector<double> medians, of_rank(looks);
  for (size_t rank = 0; rank < shares_.size(); ++rank) {
    std::transform(last.begin(), last.end(), of_rank.begin(), [&](const Look& look) { return look.seconds[rank]; });
    medians.push_back(median(of_rank));
  }
  const int64_t units = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  std::vector<int64_t> next = divide_by_speed(units, medians, most_);
  const auto faster = std::count_if(last.begin(), last.end(), [&](const Look& look) {
    return time_of_slowest(shares_, look.seconds) - time_of_slowest(next, look.seconds) >= gain * look.step_seconds;
  });
  return static_cast<size_t>(faster) + doubts >= looks ? std::optional(std::move(next)) : std::nullopt;
}

std::optional<std::vector<int64_t>> ShareWatch::look(std::span<const double> seconds, double step_seconds,
                                                     int64_t step) {
  looks_.push_back({{seconds.begin(), seconds.end()}, step_seconds});
  if (looks_.size() > kLaterLooks) looks_.erase(looks_.begin());
  if (step - begun_ < kLeastSteps) return std::nullopt;
  if (changed_) return agreed(kLaterLooks, 0, kLeastGain);
  std::optional<std::vector<int64_t>> next = agreed(kFirstLooks, 0, kLeastGain);
  // Other processes may have held up the faster rank in one look.
  return next ? next : agreed(kLooksWithDoubts, kDoubts, kLargeGain);
}

void ShareWatch::begin(std::vector<int64_t> shares, int64_t step) {
  shares_ = std::move(shares);
  begun_ = step;
  looks_.clear();
  changed_ = true;
}

}  // namespace mw
