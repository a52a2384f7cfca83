// The slices of a checkpoint that one rank holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/tensor_slice.h"
#include "train/engine.h"

namespace mw {

enum class SliceWriter : uint8_t { dealt, first_replica, owner, nobody };  // among the ranks that hold a slice

struct LocalSlice {
  std::string tensor;  // with its kind: "param. ..."
  std::vector<int64_t> global_shape;
  TensorSlice part;
  TensorView values;  // its elements in the engine's memory, f32 or, of moments, bf16
  Replicas replicas;
  SliceWriter writer;
};
std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer);

// Its name in a rank file.
std::string slice_key(const std::string& tensor, const TensorSlice& part);

// As a rank file has it: the box, or a list of elements where it is a part of one.
std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part);

}  // namespace mw
