// The time of a rank by kind of work, step by step.
#pragma once

#include <vector>

#include "core/trace.h"

namespace mw {

// Returns the seconds by kind of work since the last call, or nothing where they are not timed: on a GPU only
// every hundredth step is, or all with `--profile`.
class WorkClock {
 public:
  std::vector<double> take(const Trace& trace, bool on_device);

 private:
  std::vector<double> before_ = std::vector<double>(kWorkKinds);
  bool timed_device_ = false;
};

}  // namespace mw
