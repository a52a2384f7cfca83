// Reading the tensors of a checkpoint by parts, whatever layout wrote it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "formats/safetensors.h"
#include "spec/param_table.h"
#include "train/checkpoint.h"

namespace mw {

// Takes no memory for tensors: files are mapped as they are needed. Every stored slice that is read from is checked
// against its checksum first, once. Errors (all functions): checkpoint, naming file and tensor and an older checkpoint
// to fall back to.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& folder);
  CheckpointReader(const CheckpointReader&) = delete;

  const CheckpointIndex& index() const { return index_; }

  // Whether the optimizer's moments are there. Checkpoints of imported models have none: they are zero.
  bool has_moments() const;

  // The tensors must be those of this table; moments too, where they are there or `needs_moments`. `run` is the run
  // that the table is of: an error names its keys that were others in the checkpoint's.
  void check_tensors(const std::vector<ParamRow>& rows, bool needs_moments, const RunSpec& run) const;

  // The elements of a part of `tensor` into `values`, part.size of them, f32 or bf16: moments are converted where they
  // are stored as the other. Into u16 `values` go the rests of f32, and into `near` their upper halves. Both are in an
  // arena of `device`. `shape` is the tensor's, of the index.
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
