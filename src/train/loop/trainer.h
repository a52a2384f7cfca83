// The training loop: data, steps, validation, checkpoints, metrics, stop requests.
#pragma once

#include "base/error.h"
#include "comm/machine_load.h"
#include "comm/world.h"
#include "config/run_spec.h"

namespace mw {

struct TrainOptions {
  bool profile = false;  // print the time by kind of work
  std::string version;   // printed in the log
  CpuTimes started;      // when the command began
  bool dry_run = false;  // check everything up to the first step, write nothing
};

// Trains as the run file says, on all ranks of the world. Also returns ok when a signal stopped it after saving, and
// from a dry run that found no problem. Errors: all kinds.
Exit run_training(World& world, const RunSpec& run, const TrainOptions& options);

}  // namespace mw
