// Whether all ranks were started for the same run.
#pragma once

#include <string>

#include "comm/comm.h"
#include "config/run_spec.h"

namespace mw {

// Compares this build and run with those of rank 0. Ranks that differ would train with other numbers without a word, or
// wait for each other. Keys of log, watchdog, debug and plan may differ, and so may train.threads and
// checkpoint.resume. version: of the program. dry_run: as in TrainOptions. Collective over `world`. Errors: config, the
// same on all ranks, naming a rank and what differs.
void check_same_run(Comm& world, const RunSpec& run, const std::string& version, bool dry_run);

}  // namespace mw
