// What a run asks of its folder of checkpoints before it trains. For one rank, before any is written.
#pragma once

#include <cstdint>
#include <string>

#include "spec/run_spec.h"

namespace mw {

// What would go wrong at the first save goes wrong now; makes the folder. Errors: config, checkpoint.
void check_checkpoint_folder(const RunSpec& run);

// A run that goes back to `step` of `folder` leaves a branch behind, which pruning would remove piece by piece and the
// next checkpoint.resume = "auto" would take for the newest. Errors: checkpoint, when checkpoint.dir holds later steps.
void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder);

// Whether checkpoint.dir holds the complete checkpoint of `step`.
bool holds_checkpoint(const RunSpec& run, int64_t step);

}  // namespace mw
