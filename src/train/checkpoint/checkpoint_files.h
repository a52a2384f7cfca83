// The files of a checkpoint beside the slices: its folder, the lock, the index and DONE.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "config/param_table.h"
#include "config/run_spec.h"
#include "formats/io/output_lock.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {

// The most elements of a slice that is written, 256 MiB of fp32: who needs some of them verifies the slice as a whole.
inline constexpr int64_t kMostSliceElements = int64_t{1} << 26;

// DIR/step-N.
std::string checkpoint_folder(const std::string& dir, int64_t step);
// The name of a rank's file.
std::string rank_file_name(int rank);
// The name of a slice in a rank's file.
std::string slice_key(const std::string& tensor, const TensorSlice& part);
// Its shape there: that of the box, or a list of elements where it is part of a box.
std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part);

// Creates DIR and locks it against other writers while the result lives; waits for a writer that is about to exit. To
// be called on one rank. Errors: checkpoint, naming the other writer.
std::unique_ptr<OutputLock> lock_checkpoints(const std::string& dir);

// Prepares the folder of a checkpoint before anything is written: creates it, removes DONE and any files of an earlier
// attempt, and checks that the disk has room for `bytes`. To be called on one rank, whose progress `world` records.
// Errors: checkpoint.
void prepare_checkpoint_folder(Comm& world, const std::string& dir, const std::string& folder, int64_t bytes);

// Removes a complete checkpoint, DONE first, so that what is left of a killed attempt does not look complete. To be
// called on one rank, as above.
void remove_checkpoint(Comm& world, const std::string& folder);

// Removes what a save wrote into `folder`, DONE first, and the folder unless other files are in it. To be called on one
// rank, as above.
void remove_checkpoint_parts(Comm& world, const std::string& folder);

// Removes the remains of incomplete saves of earlier steps than `step`, as after a kill or on a full disk. To be called
// on one rank, as above.
void remove_incomplete_checkpoints(Comm& world, const std::string& dir, int64_t step);

// The JSON entry of a slice in the index.
nlohmann::json slice_entry(const CheckpointSlice& slice);

// Gathers the entries of all ranks on rank 0; empty on the others. Two collectives, whatever the number of ranks.
nlohmann::json gather_entries(Comm& world, const nlohmann::json& own);

struct CheckpointContents {
  RunState state;
  std::string run_toml, hf_config;  // as in CheckpointIndex
  bool has_moments = true;
  SharedPlacements placements = nullptr;  // null: start_placements
};
// Writes index.json, then DONE, after all files are complete; first checks that the index can be loaded, which has at
// most `limit` bytes. To be called on one rank. Errors: checkpoint, data.
void complete_checkpoint(const std::string& folder, const CheckpointContents& contents,
                         const std::vector<ParamRow>& rows, const nlohmann::json& slices,
                         size_t limit = kCheckpointIndexLimit);

}  // namespace mw
