// Where the time goes: nested scopes on the host thread, summed per label as exclusive time, and kept one by one when a
// Chrome trace is asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mw {

// The kinds of work that a step is split into when it is reported.
enum class Work : uint8_t {
  matmul,
  attention,
  elementwise,
  router,
  exchange,
  reduce,
  optimizer,
  data,
  checkpoint,
  other
};
constexpr int kWorkKinds = 10;
const char* name_of(Work work);

struct TraceEvent {
  const char* label;
  Work work;
  int64_t begin_ns;  // since the Trace was made
  int64_t end_ns;
};

class Trace {
 public:
  Trace();
  // When true every scope is kept as a TraceEvent (bounded to one million), not only summed.
  void keep_events(bool keep) { keep_events_ = keep; }
  const std::vector<TraceEvent>& events() const { return events_; }

  // Seconds per kind of work since the last reset, time of inner scopes taken out of outer ones.
  double seconds(Work work) const { return seconds_[static_cast<int>(work)]; }
  void reset();

 private:
  friend class TraceScope;
  struct Open {
    const char* label;
    Work work;
    int64_t begin_ns;
  };
  int64_t now_ns() const;
  void charge(int64_t now);

  std::chrono::steady_clock::time_point origin_;
  std::vector<Open> open_;
  std::vector<TraceEvent> events_;
  double seconds_[kWorkKinds] = {};
  int64_t last_ns_ = 0;
  bool keep_events_ = false;
};

// Opens a scope for its lifetime. `label` must outlive the trace (a literal).
class TraceScope {
 public:
  TraceScope(Trace& trace, Work work, const char* label);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace& trace_;
};

}  // namespace mw
