// Work that may fail on some ranks only, after which all ranks go on or all fail.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace mw {

// Calls `work` on this rank, and returns when all members have done theirs. If it throws an Error on some, all throw
// that of the lowest of them. `work` must not communicate with ranks that do not, too. Collective.
void agree(Comm& comm, const std::function<void()>& work);

}  // namespace mw
