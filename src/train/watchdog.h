// The watchdog: every rank tells rank 0 over TCP, from a thread of its own, where it is. A rank that is stopped is
// known by its silence, one that is alive and stuck by standing still; then rank 0 says who and where, and ends the
// job. When rank 0 itself falls silent, the others end it.
#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "spec/run_spec.h"

namespace mw {

// Ends the process, while its main thread may be stuck anywhere. Called from the watchdog's thread. Null: another rank
// tells the reason.
using EndJob = std::function<void(const Error* reason)>;

// While it lives, the ranks are watched. Its end is not collective, takes no time, and is told to the others, who then
// no longer miss this rank.
class Watchdog {
 public:
  virtual ~Watchdog() = default;
};

// Alarm after `seconds` of silence, or without a move of any rank (comm().progress() of the world). Null where there is
// nothing to watch: seconds = 0, or one rank. Collective. A rank that cannot reach rank 0 within 15 s turns the
// watchdog off for all, with a warning. Time in which the whole job is suspended does not count.
std::unique_ptr<Watchdog> start_watchdog(World& world, double seconds, EndJob end);

// Tells those who watch that `step` begins. With debug.fault = "hang" the last rank stays here at step 3.
void begin_step(Comm& world, const RunSpec& run, int64_t step);

// Tells them that the rank is at `work` (a literal): where neither steps nor scopes of a trace do.
void note_work(Comm& world, const char* work);

}  // namespace mw
