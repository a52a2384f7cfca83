// What a run asks of its folder of checkpoints before it trains. For one rank, before any is written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/output_lock.h"
#include "spec/run_spec.h"

namespace mw {

// Errors: config, for checkpoint.resume = "auto" without checkpoint.dir; checkpoint, where a run from scratch would
// find the checkpoints of another.
void check_checkpoint_folder(const RunSpec& run);

// What would go wrong at the first save goes wrong now; makes the folder, and keeps other runs out of it for as long as
// the result lives. Null without checkpoint.dir. Errors: config, checkpoint.
std::unique_ptr<OutputLock> claim_checkpoint_folder(const RunSpec& run);

// The checkpoint that checkpoint.resume names, or ""; where it is "auto", the newest of checkpoint.dir.
std::string folder_to_resume(const RunSpec& run);

// A run that goes back to `step` of `folder` leaves a branch behind, which pruning would remove piece by piece and the
// next checkpoint.resume = "auto" would take for the newest. Errors: checkpoint, when checkpoint.dir holds later steps.
void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder);

// Lines for who resumes `run` from a checkpoint of the run that `run_toml` tells: the keys that are not as they were,
// but for those that only say what is written where; and warnings of those that make the samples already counted
// others, or the weights those of another model. None where all is as it was.
std::vector<std::string> describe_changes(const std::string& run_toml, const RunSpec& run);

// The keys of the model that differ from those of the run that `run_toml` tells; none where it cannot be read.
std::vector<KeyChange> find_model_changes(const std::string& run_toml, const RunSpec& run);

// Whether `folder`, a complete checkpoint, lies in checkpoint.dir.
bool holds_checkpoint(const RunSpec& run, const std::string& folder);

}  // namespace mw
