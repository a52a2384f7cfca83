// What a trace is made of.
#pragma once

#include <cstdint>

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

// Where an event took place: on the host thread, or on one of the queues of its GPU.
enum class Lane : uint8_t { host, compute, communication };
constexpr int kLanes = 3;
const char* name_of(Lane lane);

// A number that is told with an event. Without a name: none.
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
  int64_t begin_ns;  // since the Trace was made
  int64_t end_ns;
  Lane lane = Lane::host;
  TraceArgument argument;
};

}  // namespace mw
