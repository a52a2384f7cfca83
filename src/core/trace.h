// Timing: nested scopes on the host thread, summed per kind of work as exclusive time, and kept as single events when a
// Chrome trace is requested. On a GPU the host only enqueues; there the same scopes can also be timed on the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/device_trace.h"
#include "core/progress.h"
#include "core/trace_event.h"

namespace mw {

// Callbacks that pass scopes on to the vendor's profiler (NVTX ranges). Null: none.
struct RangeMarker {
  void (*push)(const char* label) = nullptr;
  void (*pop)() = nullptr;
};

class Trace {
 public:
  Trace();
  // When true, every scope is kept as a TraceEvent (at most one million) in addition to the sums.
  void keep_events(bool keep) { keep_events_ = keep; }
  const std::vector<TraceEvent>& events() const { return events_; }
  // Moves out what events() has.
  std::vector<TraceEvent> take_events() { return std::exchange(events_, {}); }

  // For tests: the host computes as slowly as if it had `speed`, in (0, 1], of its own speed from now on. Work that
  // computes() sleeps at the end of its scopes, and the sleep counts as part of it.
  void slow_down(double speed) { sleep_per_work_ = 1 / speed - 1; }

  // Passes scopes that begin from now on to a profiler too. Must not be called while a scope is open.
  void show_ranges(RangeMarker marker) { marker_ = marker; }
  // Records the innermost open scope in `progress` from now on; null: nowhere.
  void note_phases(Progress* progress) { progress_ = progress; }

  // Also times scopes on the device of `queue` from now on; seconds() then returns the device's time. Null switches
  // this off. Each scope costs two stamps. Waits for the queue, which must stay alive until the trace is destroyed or
  // time_device is called with another one.
  void time_device(DeviceQueue* queue);
  bool times_device() const { return device_ != nullptr; }
  // Brings seconds() and events() of a timed device up to date. Waits for the device.
  void settle();

  // Seconds per kind of work since the last reset, exclusive: time of inner scopes is not part of the outer scope.
  double seconds(Work work) const {
    return device_ != nullptr ? device_->seconds(work) : seconds_[static_cast<int>(work)];
  }
  void reset();

  // Counts the bytes that this rank sent to other ranks for routed experts, since the trace was created: all, and those
  // for ranks of other nodes. Of a gather or a sum, whatever way it takes: what this rank has for the others.
  struct SentBytes {
    int64_t all = 0, far = 0;
  };
  void count_sent(SentBytes bytes) { sent_ = {sent_.all + bytes.all, sent_.far + bytes.far}; }
  SentBytes sent_bytes() const { return sent_; }

 private:
  friend class TraceScope;
  friend class QueueScope;
  struct Open {
    TraceLabel label;
    int64_t begin_ns;
  };
  int64_t now_ns() const;
  void charge(int64_t now);
  int64_t sleep_off(int64_t now);
  void keep(const TraceEvent& event);

  std::chrono::steady_clock::time_point origin_;
  std::vector<Open> open_;
  std::vector<TraceEvent> events_;
  double seconds_[kWorkKinds] = {};
  int64_t last_ns_ = 0;
  SentBytes sent_;
  bool keep_events_ = false;
  double sleep_per_work_ = 0, sleep_ns_ = 0;  // the sleep that is still to come
  RangeMarker marker_;
  Progress* progress_ = nullptr;
  std::unique_ptr<DeviceTrace> device_;  // null unless the device is timed
};

// Opens a scope for its lifetime. Texts must outlive the trace (literals). Products and elementwise operators inside a
// scope of the optimizer count as optimizer.
class TraceScope {
 public:
  TraceScope(Trace& trace, Work work, const char* label, TraceArgument argument = {});
  // A named part of a step: its time outside inner scopes is `other`.
  TraceScope(Trace& trace, const char* part, TraceArgument argument = {})
      : TraceScope(trace, Work::other, part, argument) {}
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace& trace_;
};

// The same for work on another queue of a timed device, in parallel with the host's scopes. Does nothing when the
// device is not timed.
class QueueScope {
 public:
  QueueScope(Trace& trace, DeviceQueue& queue, Work work, const char* label, TraceArgument argument = {});
  ~QueueScope();
  QueueScope(const QueueScope&) = delete;
  QueueScope& operator=(const QueueScope&) = delete;

 private:
  DeviceTrace* device_;  // null: nothing is timed
  DeviceQueue& queue_;
};

}  // namespace mw
