// Checkpoints: sharded safetensors with an index of slices and checksums. Bytes in docs/formats.md.
//
//   DIR/step-00000120/rank-00000.safetensors ...   tensors, each slice written by one rank
//   DIR/step-00000120/index.json                   where every slice of every tensor lies, with its checksum
//   DIR/step-00000120/DONE                         the checksum of index.json; written last: without it there is no
//   checkpoint
// A checkpoint loads into any layout: slices name global tensors, not ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/tensor_slice.h"
#include "train/engine.h"

namespace mw {

// What a run is besides its tensors.
struct RunState {
  int64_t step = 0;                 // optimizer steps done
  int64_t samples = 0;              // consumed: the global data cursor
  std::optional<double> loss = {};  // of the last step; older checkpoints and imported models have none
};

struct CheckpointSlice {
  std::string tensor;  // "param.layers.0.moe.w_up", "adam_m. ...", "adam_v. ..."
  TensorSlice part;    // of the global tensor
  std::string file, key, checksum;
};

struct CheckpointIndex {
  RunState state;
  std::string run_toml;
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;  // global shapes
  std::vector<CheckpointSlice> slices;
};

// Parses and fully checks an index of version 1 or 2: types, ranges, file names without path, coverage of every tensor
// without gap or overlap. Errors: checkpoint, naming `where` and the entry.
CheckpointIndex parse_checkpoint_index(std::string_view text, const std::string& where);

// Bytes of the tensors of a checkpoint, all files together.
int64_t checkpoint_bytes(const Plan& plan);

// Writes DIR/step-N beside what follows, until finish() completes it and then removes the oldest complete ones beyond
// `keep`. Meanwhile the weights and moments must not change: gradients may be computed, but not applied. Of a GPU's
// memory 16 MiB at a time are on the host. One that is destroyed before finish() stops writing; on any failure the
// folder stays incomplete and older checkpoints stay. Constructor and finish are collective over the world.
// Errors: numeric, when a weight is not finite; checkpoint, data; those of writing come in finish.
class CheckpointSave {
 public:
  CheckpointSave(Engine& engine, const std::string& dir, const RunState& state, int64_t keep);
  ~CheckpointSave();
  void finish();
  const std::string& folder() const { return folder_; }
  double write_seconds() const;  // of this rank's file, once finished

 private:
  class RankFile;
  Engine& engine_;
  std::string dir_, folder_;
  RunState state_;
  int64_t keep_;
  std::unique_ptr<RankFile> file_;
};

// Both at once.
void save_checkpoint(Engine& engine, const std::string& dir, const RunState& state, int64_t keep);

// Loads from the folder of one checkpoint, every slice that is read checked against its checksum, and repacks.
// weights_only leaves the optimizer alone. Returns what the checkpoint says of itself. Collective over the world.
// Errors: checkpoint, naming file and tensor and an older checkpoint to fall back to.
CheckpointIndex load_checkpoint(Engine& engine, const std::string& folder, bool weights_only = false);

// The step in a folder's name, "step-" and digits; -1 for any other name.
int64_t step_of_folder(const std::string& name);
// Folders of complete checkpoints under `dir`, lowest step first. Incomplete ones and other names are left out; none
// where there is no `dir`. Errors: checkpoint, where the folder cannot be read.
std::vector<std::string> list_checkpoints(const std::string& dir);
// The one of the highest step, or "".
std::string newest_checkpoint(const std::string& dir);
// index.json of a folder, checked against DONE.
CheckpointIndex read_checkpoint_index(const std::string& folder);
// The run file that a checkpoint stores, changed by `overrides`. Errors: checkpoint, config.
RunSpec read_stored_run(const std::string& folder, const std::vector<std::string>& overrides);

}  // namespace mw
