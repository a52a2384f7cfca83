// Times calls on all ranks at the same time: as in training, ranks on a node compete for its memory and links.
#pragma once

#include <functional>
#include <vector>

#include "comm/comm.h"
#include "core/stream.h"

namespace mw {

class Meter {
 public:
  // seconds: approximate time of one measurement. At least three batches of calls are timed, or one that takes as long
  // as three measurements. References must outlive the meter.
  Meter(Comm& world, Stream& stream, double seconds) : world_(world), stream_(stream), seconds_(seconds) {}

  // Seconds per call: batches of calls with one wait at the end; the median over batches, of the slowest rank. The same
  // on every rank. Collective over the world; `call` may be collective too.
  double seconds_of(const std::function<void()>& call);
  // Seconds per call of each rank while all ranks make calls for as long as three measurements take, on average: with
  // pauses in which something keeps a rank from computing. Collective over the world; `call` must not be.
  std::vector<double> seconds_by_rank(const std::function<void()>& call);
  // The time of `call` divided by that of `other`; their batches alternate, so that a temporary slowdown of the machine
  // affects both. Takes the time of two measurements. Otherwise as seconds_of.
  double ratio_of(const std::function<void()>& call, const std::function<void()>& other);

 private:
  struct Row {  // a batch of enough calls to make the clock's overhead negligible
    const std::function<void()>& call;
    int64_t calls;
    double seconds;  // about, by one call after one that is not timed
    double per_call() const { return seconds / static_cast<double>(calls); }
  };
  Row prepare(const std::function<void()>& call);
  double time_row(const std::function<void()>& call, int64_t calls);
  Comm& world_;
  Stream& stream_;
  double seconds_;
};

}  // namespace mw
