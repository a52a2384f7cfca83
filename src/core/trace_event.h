// The events of a trace: kinds of work, lanes, labels.
#pragma once

#include <cstdint>

namespace mw {

// The kinds of work by which the time of a step is reported.
enum class Work : uint8_t {
  matmul,
  attention,
  elementwise,
  router,  // the last that computes()
  exchange,
  reduce,
  optimizer,
  data,
  checkpoint,
  other
};
constexpr int kWorkKinds = 10;
const char* name_of(Work work);
// Work of the forward and backward passes that waits for no other rank.
inline bool computes(Work work) { return work <= Work::router; }

// Where the work of an event ran: on the host thread, or on a queue of its GPU.
enum class Lane : uint8_t { host, compute, communication };
constexpr int kLanes = 3;
const char* name_of(Lane lane);

// A named number attached to an event. No name: none.
struct TraceArgument {
  const char* name = nullptr;
  int64_t value = 0;
};

// Texts must outlive the trace (literals).
struct TraceLabel {
  const char* text = nullptr;
  Work work = Work::other;
  TraceArgument argument;
};

struct TraceEvent {
  const char* label;
  Work work;
  int64_t begin_ns;  // since the Trace was created
  int64_t end_ns;
  Lane lane = Lane::host;
  TraceArgument argument;
};

}  // namespace mw
