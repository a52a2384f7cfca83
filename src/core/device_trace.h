// Scopes timed on a device: begin and end are stamped on the device's queues while the host continues, and converted to
// times once the device has reached the stamps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/device.h"
#include "core/trace_event.h"

namespace mw {

class DeviceTrace {
 public:
  // Scopes of `queue` go to the compute lane, scopes of any other queue of its device to the communication lane.
  // `now_ns`: the host's clock, to which all event times are converted. Waits for the queue.
  DeviceTrace(DeviceQueue& queue, std::function<int64_t()> now_ns);
  DeviceQueue& queue() { return queue_; }

  // Scopes of one queue must be nested.
  void begin(DeviceQueue& queue, const TraceLabel& label);
  void end(DeviceQueue& queue) noexcept;

  // Waits for the stamped queues, adds up the times since the last call, and passes each finished scope to `keep`. The
  // time of this call itself is not counted.
  void settle(const std::function<void(const TraceEvent&)>& keep);
  // Whether the caller should make room because many stamps are pending: bounds the memory of stamps.
  bool is_full() const;
  // As settle(), but waits for the compute queue alone and forgets the scopes of others since the last settle(). A rank
  // may do so in the middle of a step, where a message that it sent may need work of its own that is yet to come.
  void make_room(const std::function<void(const TraceEvent&)>& keep);

  // Seconds of the compute queue per kind of work up to the last settle(), exclusive: time of inner scopes is not part
  // of the outer scope. Time outside all scopes is `other`, including the time in which the device idles between
  // scopes.
  double seconds(Work work) const { return seconds_[static_cast<int>(work)]; }
  void reset();

 private:
  struct Moment {
    DeviceQueue::Stamp stamp;
    bool begins;
    TraceLabel label;  // for begins only
  };
  struct Open {
    TraceLabel label;
    int64_t begin_ns;
  };
  struct Track {
    DeviceQueue* queue;  // may dangle while `moments` is empty
    Lane lane;
    std::vector<Moment> moments;  // since the anchor, in queue order
    std::vector<Open> open;
  };
  void mark(DeviceQueue& queue, bool begins, const TraceLabel& label);
  void anchor();
  void finish(const std::function<void(const TraceEvent&)>& keep);
  void replay(Track& track, const std::function<void(const TraceEvent&)>& keep);

  DeviceQueue& queue_;
  std::function<int64_t()> now_ns_;
  std::vector<Track> tracks_;  // the first is that of queue_
  DeviceQueue::Stamp anchor_ = nullptr;
  int64_t anchor_ns_ = 0;  // time of the anchor on the host's clock
  int64_t latest_ns_ = 0;  // no event ends later
  double seconds_[kWorkKinds] = {};
};

}  // namespace mw
