// Scopes timed on a device: their ends are stamped on its queues while the host goes on, and turned into times once the
// device has got there.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/device.h"
#include "core/trace_event.h"

namespace mw {

class DeviceTrace {
 public:
  // Scopes of `queue` are the lane of computing, those of another queue of its device the lane of communication.
  // `now_ns`: the host's clock, on which all events are told. Waits for the queue.
  DeviceTrace(DeviceQueue& queue, std::function<int64_t()> now_ns);
  DeviceQueue& queue() { return queue_; }

  // Scopes of one queue are nested.
  void begin(DeviceQueue& queue, const TraceLabel& label);
  void end(DeviceQueue& queue) noexcept;

  // Waits for the queues that were stamped, adds up what came since the last time, and hands the scopes that ended to
  // `keep`. The time that this takes is nobody's.
  void settle(const std::function<void(const TraceEvent&)>& keep);
  // So much was stamped that it is time to settle: bounds the memory of stamps.
  bool is_full() const;

  // Seconds of the computing queue per kind of work up to the last settle(), time of inner scopes taken out of outer
  // ones. What lies in no scope is `other`, and so is a device that idles between scopes.
  double seconds(Work work) const { return seconds_[static_cast<int>(work)]; }
  void reset();

 private:
  struct Moment {
    DeviceQueue::Stamp stamp;
    bool begins;
    TraceLabel label;  // of a scope that begins
  };
  struct Open {
    TraceLabel label;
    int64_t begin_ns;
  };
  struct Track {
    DeviceQueue* queue;  // may be gone while there are no moments
    Lane lane;
    std::vector<Moment> moments;  // since the anchor, in the queue's order
    std::vector<Open> open;
  };
  void mark(DeviceQueue& queue, bool begins, const TraceLabel& label);
  void anchor();
  void replay(Track& track, const std::function<void(const TraceEvent&)>& keep);

  DeviceQueue& queue_;
  std::function<int64_t()> now_ns_;
  std::vector<Track> tracks_;  // the first is that of queue_
  DeviceQueue::Stamp anchor_ = nullptr;
  int64_t anchor_ns_ = 0;  // when the anchor was passed, on the host's clock
  int64_t latest_ns_ = 0;  // no event ends later
  double seconds_[kWorkKinds] = {};
};

}  // namespace mw
