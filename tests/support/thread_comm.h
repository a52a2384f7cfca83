// A world whose ranks are threads of one process: what needs several ranks can be tested without a launcher. Groups
// behave as the real ones do (comm/comm.h), and are stricter where those may be lenient:
// - All members meet in every collective, and call the same one of the same size: else both calls are named.
// - Sums are taken in the order of the members, and have the same bits on all of them.
// - What an exchange sends leaves when it starts, whoever else has come; what it receives arrives in wait(). Until then
//   the place for it holds 0xff bytes (NaN), and wait() fails where what was sent has been touched.
// - A message that was sent is waited for until the other side receives, as MPI's synchronous sends are.
// - Neither buffer of an exchange may overlap the other, but for the rows that a member sends to itself.
// - Where no rank can go on, all end with an error that says where each of them waits, and for whom.
// - At the end nothing may be left that only some members have called, sent or received.
// Numbers of groups in errors are ranks of the world.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace mw::test {

// One rank: its group of all ranks, and a stream of one thread with scratch memory of its own.
using RankBody = std::function<void(Comm& world, Stream& stream)>;

// Runs `body` on each of `ranks` threads and returns when all have ended. Where one throws, the others end in their
// next wait for it; rethrows the first error, an Error with the rank in front of its message. Errors: comm, for calls
// that do not meet.
void run_ranks(int ranks, const RankBody& body);

}  // namespace mw::test
