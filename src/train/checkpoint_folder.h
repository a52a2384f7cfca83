// What a run asks of its folder of checkpoints before it trains. For one rank, before any is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace mw {

// What would go wrong at the first save goes wrong now; makes the folder. Errors: config, checkpoint.
void check_checkpoint_folder(const RunSpec& run);

// A run that goes back to `step` of `folder` leaves a branch behind, which pruning would remove piece by piece and the
// next checkpoint.resume = "auto" would take for the newest. Errors: checkpoint, when checkpoint.dir holds later steps.
void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder);

// Lines for who resumes `run` from a checkpoint of the run that `run_toml` tells: the keys that are not as they were,
// but for those that only say what is written where; and warnings of those that make the samples already counted
// others, or the weights those of another model. None where all is as it was.
std::vector<std::string> describe_changes(const std::string& run_toml, const RunSpec& run);

// Whether checkpoint.dir holds the complete checkpoint of `step`.
bool holds_checkpoint(const RunSpec& run, int64_t step);

}  // namespace mw
