// Stop requests: SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) that reaches any rank makes all ranks stop after the same step.
#pragma once

#include <string>

#include "comm/comm.h"

namespace mw {

// What the first Ctrl-C answers in a run that saves into `checkpoint_dir` ("": nowhere).
std::string interrupt_notice(const std::string& checkpoint_dir);

// Installs the handlers. The flag that they set belongs to the process, as signals do. The first SIGINT writes `notice`
// to stderr, unless it is empty; a second one, at least half a second later, ends the process at once with SIGINT.
// (Some launchers deliver one Ctrl-C twice.)
void watch_stop_signals(const std::string& notice);

// True on every rank when any rank was asked to stop. Collective.
bool stop_requested(Comm& world);

}  // namespace mw
