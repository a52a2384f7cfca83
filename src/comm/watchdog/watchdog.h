// The watchdog: a thread of every rank reports its progress to rank 0 over TCP. A stopped rank is detected by its
// silence, a rank that is alive but stuck by the lack of progress; rank 0 then prints which rank is stuck and where,
// and ends the job. When rank 0 itself falls silent, the others end it.
#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "config/run_spec.h"

namespace mw {

// Ends the process while its main thread may be stuck anywhere. Called on the watchdog's thread. Null: another rank
// prints the reason.
using EndJob = std::function<void(const Error* reason)>;

// The ranks are watched while this object lives. Its destruction is not collective and does not block; it tells the
// others that this rank has left.
class Watchdog {
 public:
  virtual ~Watchdog() = default;
};

// Raises an alarm after `seconds` of silence of a rank, or without progress of any rank (comm().progress() of the
// world). Returns null where there is nothing to watch: seconds = 0, or one rank. Collective. When a rank cannot reach
// rank 0 within 15 s, the watchdog is off for all ranks, with a warning. Time in which the whole job is suspended does
// not count.
std::unique_ptr<Watchdog> start_watchdog(World& world, double seconds, EndJob end);

// Records that `step` begins. With debug.fault = "hang" (an injected fault) the last rank stays here at step 3.
void begin_step(Comm& world, const RunSpec& run, int64_t step);

// Records that the rank does `work` (a literal), in phases that have neither steps nor trace scopes.
void note_work(Comm& world, const char* work);

}  // namespace mw
