// Where the time goes: nested scopes on the host thread, summed per kind of work as exclusive time, and kept one by one
// when a Chrome trace is asked for. On a GPU the host only enqueues: there the same scopes can be timed on the device.
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

// Shows scopes to a profiler of the vendor's. Null: to none.
struct RangeMarker {
  void (*push)(const char* label) = nullptr;
  void (*pop)() = nullptr;
};

class Trace {
 public:
  Trace();
  // When true every scope is kept as a TraceEvent (bounded to one million), not only summed.
  void keep_events(bool keep) { keep_events_ = keep; }
  const std::vector<TraceEvent>& events() const { return events_; }

  // Scopes that begin from now on are shown to a profiler too. Not while one is open.
  void show_ranges(RangeMarker marker) { marker_ = marker; }
  // The innermost open scope is noted there from now on; null: nowhere.
  void note_phases(Progress* progress) { progress_ = progress; }

  // Scopes are timed on the device of `queue` too from now on, and seconds() is the device's time; null: no more. Each
  // scope then costs two stamps. Waits for the queue, which must live until the trace ends or lets go of it.
  void time_device(DeviceQueue* queue);
  bool times_device() const { return device_ != nullptr; }
  // Brings seconds() and events() of a timed device up to now, for which it waits.
  void settle();

  // Seconds per kind of work since the last reset, time of inner scopes taken out of outer ones.
  double seconds(Work work) const {
    return device_ != nullptr ? device_->seconds(work) : seconds_[static_cast<int>(work)];
  }
  void reset();

  // Bytes of routed rows that this rank sent to others, since the trace began.
  void count_sent(int64_t bytes) { sent_bytes_ += bytes; }
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  friend class TraceScope;
  friend class QueueScope;
  struct Open {
    TraceLabel label;
    int64_t begin_ns;
  };
  int64_t now_ns() const;
  void charge(int64_t now);
  void keep(const TraceEvent& event);

  std::chrono::steady_clock::time_point origin_;
  std::vector<Open> open_;
  std::vector<TraceEvent> events_;
  double seconds_[kWorkKinds] = {};
  int64_t last_ns_ = 0, sent_bytes_ = 0;
  bool keep_events_ = false;
  RangeMarker marker_;
  Progress* progress_ = nullptr;
  std::unique_ptr<DeviceTrace> device_;  // while the device is timed
};

// Opens a scope for its lifetime. Texts must outlive the trace (literals).
class TraceScope {
 public:
  TraceScope(Trace& trace, Work work, const char* label, TraceArgument argument = {});
  // Names a part of a step: what the scopes inside leave of its time is `other`.
  TraceScope(Trace& trace, const char* part, TraceArgument argument = {})
      : TraceScope(trace, Work::other, part, argument) {}
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace& trace_;
};

// The same for what is enqueued on another queue of a timed device, beside the scopes of the host; else nothing.
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
