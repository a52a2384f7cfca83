// How a model folder is split into files: names and contents of its shards and of their index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "formats/weights/hf_names.h"

namespace mw {

// The dtype in which a tensor is written, in a folder of `dtype`.
DType written_dtype(const HfTensor& tensor, DType dtype);

struct HfShard {
  std::string file;             // "model.safetensors", or "model-00001-of-00003.safetensors"
  std::vector<size_t> tensors;  // indices into the list of tensors
};

// Splits `tensors`, in their order, into files of at most `limit` bytes of weights; a larger tensor gets a file of its
// own. Returns at least one file.
std::vector<HfShard> cut_into_shards(const std::vector<HfTensor>& tensors, DType dtype, int64_t limit);

// The text of model.safetensors.index.json: total_size in bytes, and the file of each tensor.
std::string hf_index_text(const std::vector<HfTensor>& tensors, const std::vector<HfShard>& shards, DType dtype);

}  // namespace mw
