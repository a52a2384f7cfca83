// Reads parts of a checkpoint's tensors, whatever layout wrote it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/param_table.h"
#include "core/tensor.h"
#include "formats/weights/safetensors.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {

// Allocates no memory for tensors: files are memory-mapped as needed. Every stored slice is verified against its
// checksum once, before its first use. Errors (all functions): checkpoint, naming file and tensor and an older
// checkpoint to fall back to.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& folder);
  CheckpointReader(const CheckpointReader&) = delete;

  const CheckpointIndex& index() const { return index_; }

  // Checks that every file which the index names exists and is as long as its header says. Reads no tensor.
  void check_files() const;

  // Whether the checkpoint contains the optimizer's moments. Checkpoints of imported models do not: their moments are
  // zero.
  bool has_moments() const;
  // Whether training from it needs them: only before the first step are moments zero, as they are made.
  bool needs_moments() const { return has_moments() || index_.state.step > 0; }

  // Checks that the checkpoint contains the tensors of this table, and the moments if it has any or `needs_moments`.
  // `run` is the run that the table belongs to: errors name its keys that differ from the checkpoint's.
  void check_tensors(const std::vector<ParamRow>& rows, bool needs_moments, const RunSpec& run) const;

  // Reads a part of `tensor` into `values`: part.size elements, f32 or bf16; moments are converted when stored in the
  // other dtype. For split master weights `values` is u16 and receives the low parts of the f32 weights, and `near` the
  // high parts. Both are in an arena of `device`. `shape` is the tensor's shape in the index.
  void read(const std::string& tensor, const std::vector<int64_t>& shape, const TensorSlice& part, Device device,
            TensorView values, TensorView near = {});

 private:
  struct Stored {
    std::span<const std::byte> bytes;
    DType dtype = DType::f32;
  };
  const Stored& stored(const CheckpointSlice& slice, const std::vector<int64_t>& shape);

  std::string folder_;
  CheckpointIndex index_;
  std::map<std::string, std::vector<const CheckpointSlice*>> by_tensor_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<const CheckpointSlice*, Stored> verified_;
};

}  // namespace mw
