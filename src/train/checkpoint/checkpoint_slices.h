// The slices of a checkpoint that one rank holds, and which rank writes each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "layout/tensor_slice.h"

namespace mw {

enum class SliceWriter : uint8_t {
  dealt,
  first_replica,
  owner,
  nobody
};  // which of the ranks that hold a slice writes it

struct LocalSlice {
  std::string tensor;  // with the prefix of its kind: "param. ..."
  std::vector<int64_t> global_shape;
  TensorSlice part;
  TensorView values;  // elements in the engine's memory: f32, bf16 (moments), or u16 (low parts of split weights)
  TensorView near;    // high parts of split weights; else empty
  Replicas replicas;
  SliceWriter writer;
};
std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer);

// The dtype of its elements in a rank file.
DType stored_dtype(const LocalSlice& slice);

// Its name in a rank file.
std::string slice_key(const std::string& tensor, const TensorSlice& part);

// The shape in a rank file: that of the box, or a list of elements where it is part of a box.
std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part);

}  // namespace mw
