// `train --dry-run`: what a run would meet before its first step, without writing anything.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/disk_need.h"

namespace mw {

// Every output of the run (checkpoints, metrics, TensorBoard, trace) can be made where it shall stand, and nothing is
// there that a run would refuse. Creates nothing. For one rank. Errors: config, data, checkpoint.
void check_output_folders(const RunSpec& run);

struct StartCheck {
  std::string resumed;  // folder of a checkpoint; empty: none
  RunState state;       // that the run would go on from
  DiskNeed disk;
};

// The checkpoint that a run would go on from fits the model, and its own checkpoints fit on the disk. Reads no tensor.
// For one rank. Errors: checkpoint.
StartCheck check_start(const Plan& plan);

// Lines for the log. needed, available: memory of the largest rank, and the smallest share of a rank.
std::vector<std::string> describe(const StartCheck& start, const Plan& plan, int64_t needed, int64_t available);

}  // namespace mw
