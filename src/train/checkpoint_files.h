// What makes files of slices a checkpoint: the folder, the index and DONE.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "formats/output_lock.h"
#include "spec/param_table.h"
#include "spec/run_spec.h"
#include "train/checkpoint.h"

namespace mw {

// DIR/step-N.
std::string checkpoint_folder(const std::string& dir, int64_t step);
// The file that a rank writes.
std::string rank_file_name(int rank);

// Makes DIR and keeps other writers out of it for as long as the result lives; one that is about to end is waited for.
// For one rank. Errors: checkpoint, naming who writes there.
std::unique_ptr<OutputLock> lock_checkpoints(const std::string& dir);

// For one rank, before anything is written: the folder is made, is no complete checkpoint any more, holds nothing of
// one that was there, and has room for `bytes`. Errors: checkpoint.
void prepare_checkpoint_folder(const std::string& dir, const std::string& folder, int64_t bytes);

// Removes what saves before `step` began and never completed, as after a kill or on a full disk.
void remove_incomplete_checkpoints(const std::string& dir, int64_t step);

// An entry of the index's list of slices.
nlohmann::json slice_entry(const CheckpointSlice& slice);

// The entries of all ranks, on rank 0; empty on the others. Collective.
nlohmann::json gather_entries(Comm& world, const nlohmann::json& own);

struct CheckpointContents {
  RunState state;
  std::string run_toml;
  bool has_moments = true;
};
// Writes index.json, then DONE, over files that are complete, and proves first that it loads. For one rank. Errors:
// checkpoint, data.
void complete_checkpoint(const std::string& folder, const CheckpointContents& contents,
                         const std::vector<ParamRow>& rows, const nlohmann::json& slices);

}  // namespace mw
