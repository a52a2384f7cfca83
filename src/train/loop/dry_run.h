// `train --dry-run`: checks everything up to the first step without writing anything.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/disk_need.h"

namespace mw {

// Checks that every output of the run (checkpoints, metrics, TensorBoard, trace) can be created in its place, and that
// checkpoints and metrics are not among the text to train on. Creates nothing. To be called on one rank. Errors:
// config, data, checkpoint.
void check_outputs(const RunSpec& run);

struct StartCheck {
  std::string resumed;               // checkpoint to resume from; empty: none
  RunState state;                    // the state from which the run would continue
  std::vector<std::string> changes;  // since that checkpoint (describe_changes_since)
  DiskNeed disk;
};

// Checks that the checkpoint to resume from fits the model, and that the run's own checkpoints fit on the disk. Reads
// no tensor. data_tokens: of each source of the data. To be called on one rank. Errors: checkpoint.
StartCheck check_start(const Plan& plan, const std::vector<int64_t>& data_tokens);

// Log lines. needed: memory of the largest rank; available: the smallest share of a rank.
std::vector<std::string> describe(const StartCheck& start, const Plan& plan, int64_t needed, int64_t available);

}  // namespace mw
