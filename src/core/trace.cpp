#include "core/trace.h"

namespace mw {
namespace {
constexpr size_t kMaxEvents = 1'000'000;
}

const char* name_of(Work work) {
  switch (work) {
    case Work::matmul: return "matmul";
    case Work::attention: return "attention";
    case Work::elementwise: return "elementwise";
    case Work::router: return "router";
    case Work::exchange: return "exchange";
    case Work::reduce: return "reduce";
    case Work::optimizer: return "optimizer";
    case Work::data: return "data";
    case Work::checkpoint: return "checkpoint";
    case Work::other: return "other";
  }
  return "?";
}

Trace::Trace() : origin_(std::chrono::steady_clock::now()) {}

int64_t Trace::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - origin_).count();
}

// Time since the last boundary belongs to the innermost open scope.
void Trace::charge(int64_t now) {
  const Work work = open_.empty() ? Work::other : open_.back().work;
  seconds_[static_cast<int>(work)] += static_cast<double>(now - last_ns_) * 1e-9;
  last_ns_ = now;
}

void Trace::reset() {
  for (double& s : seconds_) s = 0.0;
  last_ns_ = now_ns();
}

TraceScope::TraceScope(Trace& trace, Work work, const char* label) : trace_(trace) {
  const int64_t now = trace_.now_ns();
  trace_.charge(now);
  trace_.open_.push_back({label, work, now});
}

TraceScope::~TraceScope() {
  const int64_t now = trace_.now_ns();
  trace_.charge(now);
  const Trace::Open scope = trace_.open_.back();
  trace_.open_.pop_back();
  if (trace_.keep_events_ && trace_.events_.size() < kMaxEvents)
    trace_.events_.push_back({scope.label, scope.work, scope.begin_ns, now});
}

}  // namespace mw
