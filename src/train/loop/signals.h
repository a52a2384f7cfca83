// Stop requests: SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) received by any rank makes all ranks stop after the same step.
#pragma once

#include <string>

#include "comm/comm.h"

namespace mw {

// The message that the first Ctrl-C prints, in a run that saves into `checkpoint_dir` ("": nowhere).
std::string interrupt_notice(const std::string& checkpoint_dir);

// Installs the signal handlers; their flag is global to the process. The first SIGINT writes `notice` to stderr, unless
// it is empty; a second one, at least half a second later, kills the process with SIGINT. (Some launchers deliver one
// Ctrl-C twice.)
void watch_stop_signals(const std::string& notice);

// Whether any rank was asked to stop; the same on every rank. Collective.
bool stop_requested(Comm& world);

}  // namespace mw
