// The training loop: data, steps, validation, checkpoints, metrics, stop requests.
#pragma once

#include "base/error.h"
#include "comm/machine_load.h"
#include "comm/world.h"
#include "config/run_spec.h"

namespace mw {

struct TrainOptions {
  bool profile = false;  // at the end, print the time of each kind of work (matrix products, attention, ...)
  std::string version;   // printed in the log
  CpuTimes started;      // clock and CPU times when the command began, to see later how busy the machine was
  bool dry_run = false;  // check everything up to the first step, write nothing
};

// Trains as the run file says, on all ranks of the world. Collective over the world. Returns Exit::ok in three cases:
// the run is complete; a signal stopped the run and a checkpoint was saved; a dry run passed every check. Throws Error
// for every problem, also one that a dry run finds. Errors: all kinds.
Exit run_training(World& world, const RunSpec& run, const TrainOptions& options);

}  // namespace mw
