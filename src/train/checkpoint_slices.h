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
  TensorView values;  // its elements in the engine's memory: f32, bf16 of moments, or u16: rests of split weights
  TensorView near;    // their upper halves; else empty
  Replicas replicas;
  SliceWriter writer;
};
std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer);

// Of its elements in a rank file.
DType stored_dtype(const LocalSlice& slice);

// Its name in a rank file.
std::string slice_key(const std::string& tensor, const TensorSlice& part);

// As a rank file has it: the box, or a list of elements where it is a part of one.
std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part);

}  // namespace mw
