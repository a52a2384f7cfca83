// Stop requests: SIGTERM or SIGUSR1 reaching any rank makes all ranks stop at the same step.
#pragma once

#include "comm/comm.h"

namespace mw {

// Installs the handlers. The flag they set is the process's, as signals are.
void watch_stop_signals();

// True on every rank when any rank was asked to stop. Collective.
bool stop_requested(Comm& world);

}  // namespace mw
