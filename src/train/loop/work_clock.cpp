#include "train/loop/work_clock.h"

#include <algorithm>
#include <utility>

namespace mw {

std::vector<double> WorkClock::take(const Trace& trace, bool on_device) {
  if (on_device && !trace.times_device()) {
    timed_device_ = false;
    return {};
  }
  if (timed_device_ != trace.times_device()) before_.assign(kWorkKinds, 0);  // another clock, from zero
  timed_device_ = trace.times_device();
  std::vector<double> taken;
  for (int w = 0; w < kWorkKinds; ++w) {
    const double now = trace.seconds(static_cast<Work>(w));
    taken.push_back(std::max(0.0, now - std::exchange(before_[static_cast<size_t>(w)], now)));
  }
  return taken;
}

}  // namespace mw
