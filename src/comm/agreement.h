// What ranks agree on: whether work that may fail on some of them is done, and whether something holds on any.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace mw {

// Calls `work` on this rank, and returns when all members have done theirs. If it throws an Error on some, all throw
// that of the lowest of them. `work` must not communicate with ranks that do not, too. Collective.
void agree(Comm& comm, const std::function<void()>& work);

// Whether `own` is true on any member. Collective.
bool on_any_rank(Comm& comm, bool own);

}  // namespace mw
