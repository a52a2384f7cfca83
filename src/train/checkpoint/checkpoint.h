// Checkpoints: sharded safetensors with an index of slices and checksums. The byte layout is in docs/formats.md.
//
//   DIR/step-00000120/rank-00000.safetensors ...   tensors, each slice written by one rank
//   DIR/step-00000120/index.json                   the location of every slice of every tensor, with its checksum
//   DIR/step-00000120/DONE                         the checksum of index.json; written last: marks it as complete
// A checkpoint can be loaded into any layout and placement (resharding): slices refer to global tensors, not to ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "layout/tensor_slice.h"

namespace mw {

// Losses and gradient norms of the last steps, oldest first, also of those that were skipped (train.skip_spikes).
struct StepHistory {
  std::vector<double> losses, norms;
};

// The state of a run apart from its tensors.
struct RunState {
  int64_t step = 0;                 // optimizer steps done
  int64_t samples = 0;              // consumed: the global data cursor
  std::optional<double> loss = {};  // of the last step; none in older checkpoints and imported models
  int64_t skipped = 0;              // steps that changed no weights
  StepHistory history = {};
  std::vector<int64_t> data_tokens = {};  // by source of the training data; empty in older and imported checkpoints
};

inline constexpr const char* kDamagedCheckpoint = "the checkpoint is damaged; load an older one";  // a hint

struct CheckpointSlice {
  std::string tensor;  // "param.layers.0.moe.w_up", "adam_m. ...", "adam_v. ..."
  TensorSlice part;    // of the global tensor
  std::string file, key, checksum;
};

struct CheckpointIndex {
  RunState state;
  std::string run_toml;
  std::string hf_config;  // of a run of a Hugging Face folder: the model, as write_hf_config writes it; else empty
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;  // global shapes
  std::vector<CheckpointSlice> slices;
  SharedPlacements placements;  // that it was written with; null: start_placements
};

// Parses and validates an index of version 1 or 2: types, ranges, file names without a path, and that slices cover
// every tensor without gap or overlap. Errors: checkpoint, naming `where` and the entry.
CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& where);

// Total bytes of a checkpoint's tensors, over all files.
int64_t checkpoint_bytes(const Plan& plan);

// Asynchronous save of DIR/step-N: the constructor starts writing in the background; finish() completes the checkpoint,
// and when it is complete for all ranks, rank 0 removes the oldest complete ones beyond `keep` (retention). Until
// finish() returns, weights and moments must not change: gradients may be computed, but not applied. From a GPU, 16 MiB
// at a time are staged on the host. The destructor stops writing if finish() was not called; the folder then stays
// incomplete. Older checkpoints remain after any failure. Constructor and finish are collective over the world.
// Errors: numeric, when a weight is not finite; checkpoint, when it cannot be written: all ranks throw the error of
// one of them, and what was written is removed. Errors of writing are thrown by finish.
class CheckpointSave {
 public:
  CheckpointSave(Engine& engine, const std::string& dir, const RunState& state, int64_t keep);
  ~CheckpointSave();
  void finish();
  const std::string& folder() const { return folder_; }
  double write_seconds() const;  // for this rank's file; valid after finish()

 private:
  class RankFile;
  void complete();
  Engine& engine_;
  std::string dir_, folder_;
  RunState state_;
  int64_t keep_;
  std::unique_ptr<RankFile> file_;
};

// Whether an error of CheckpointSave is that the checkpoint could not be written. All ranks have it then, and a later
// save may succeed.
bool is_save_failure(const Error& error);

// Synchronous save: start and finish.
void save_checkpoint(Engine& engine, const std::string& dir, const RunState& state, int64_t keep);

// Loads the checkpoint in `folder`; each slice is checked against its checksum before it is used. Then updates the
// packed forms of the weights. weights_only does not touch the optimizer state. Returns the checkpoint's index.
// Collective over the world. Errors: checkpoint, naming file and tensor and an older checkpoint to fall back to.
CheckpointIndex load_checkpoint(Engine& engine, const std::string& folder, bool weights_only = false);

// The step in a folder name ("step-" and digits); -1 for any other name.
int64_t step_of_folder(const std::string& name);
// The folders of complete checkpoints in `dir`, in ascending order of steps; ignores incomplete ones and other names.
// Empty where `dir` does not exist. Errors: checkpoint, when the folder cannot be read.
std::vector<std::string> list_checkpoints(const std::string& dir);
// The complete checkpoint with the highest step, or "". Errors: those of list_checkpoints.
std::string newest_checkpoint(const std::string& dir);
// The largest index.json that is read and written, in bytes: some five million slices.
inline constexpr size_t kCheckpointIndexLimit = size_t{1} << 30;
// Reads index.json of a folder, checked against DONE. Errors: checkpoint, for a folder that is missing, incomplete or
// damaged.
CheckpointIndex read_checkpoint_index(const std::string& folder);
// The run file stored in a checkpoint, with `overrides` applied. Errors: checkpoint, config.
RunSpec read_stored_run(const std::string& folder, const std::vector<std::string>& overrides);

}  // namespace mw
