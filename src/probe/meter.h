// Times calls on all ranks at once: as in training, ranks that share a node compete for its memory and links.
#pragma once

#include <functional>

#include "comm/comm.h"
#include "core/stream.h"

namespace mw {

class Meter {
 public:
  // seconds: that one measurement may take, about; at least three batches of calls are timed. References must outlive
  // the meter.
  Meter(Comm& world, Stream& stream, double seconds) : world_(world), stream_(stream), seconds_(seconds) {}

  // Seconds of one call in a row of calls, waiting at the end only: the median of several rows, of the slowest rank.
  // The same on every rank. Collective over the world; `call` may be so too.
  double seconds_of(const std::function<void()>& call);
  // Seconds of `call` over those of `other`, whose rows take turns: what slows the machine for a while slows both.
  // Takes the time of two measurements. Else as seconds_of.
  double ratio_of(const std::function<void()>& call, const std::function<void()>& other);

 private:
  struct Row {  // so many calls that the clock does not count
    const std::function<void()>& call;
    int64_t calls;
    double seconds;  // about
  };
  Row prepare(const std::function<void()>& call);
  double time_row(const std::function<void()>& call, int64_t calls);
  Comm& world_;
  Stream& stream_;
  double seconds_;
};

}  // namespace mw
