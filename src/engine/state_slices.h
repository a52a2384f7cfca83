// The states of a rank as slices of the model's tensors, and their elements as checkpoints store them: fp32 master
// weights, also of split ones, and moments in their own dtype. Checkpoints read and write these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "layout/state_map.h"
#include "layout/state_moves.h"
#include "layout/tensor_slice.h"
#include "model/param_store.h"

namespace mw {

struct LocalSlice {
  std::string tensor;  // as in state_name
  std::vector<int64_t> global_shape;
  TensorSlice part;
  TensorView values;  // elements in the engine's memory: f32, bf16 (moments), or u16 (low parts of split weights)
  TensorView near;    // high parts of split weights; else empty
  Replicas replicas;
  int64_t place = 0;  // of the first element in the rank's local tensor
  int64_t entry = 0;  // elements of an expert there; of other tensors all
  bool is_expert = false;
  bool is_cut = false;   // this rank is the only one that holds it (ZeRO)
  bool is_copy = false;  // of tied embeddings, beside the head
};

// The same in parts of `most` elements, in their order; the last may have fewer.
std::vector<LocalSlice> cut_slice(const LocalSlice& slice, int64_t most);

// What `params` holds, in the order of its parameters; of one tensor in the order of StateMap::slices.
std::vector<LocalSlice> local_slices(ParamStore& params, bool with_optimizer);

// The slices of an engine's memory by what a StateMap of its plan says about them. They stay valid when experts are
// placed elsewhere, but mean what they meant before.
class EngineStates {
 public:
  explicit EngineStates(Engine& engine);
  // part: the slice that the map has at this index, which must be the one in memory.
  const LocalSlice& at(const StateMove& move, size_t index, const TensorSlice& part) const;

  const StateMap map;

 private:
  std::map<std::string, std::vector<LocalSlice>> by_tensor_;  // in the order of StateMap::slices
};

// The dtype of its stored elements: f32 or bf16.
DType stored_dtype(const LocalSlice& slice);

// Brings elements of slices to the host in stored form, on a queue of the calling thread's own.
class SliceReader {
 public:
  explicit SliceReader(Device device);
  // Elements [begin, begin + count), valid until the next call. On a CPU they are copied only if they are split.
  std::span<const std::byte> read(const LocalSlice& slice, int64_t begin, int64_t count);

 private:
  std::span<const std::byte> fetch(const TensorView& view, std::vector<std::byte>& staging);

  std::unique_ptr<DeviceQueue> queue_;
  std::vector<std::byte> values_, near_;
  std::vector<float> joined_;
};

// Overwrites `values` (and `near`, of split weights) with stored elements of `dtype`, f32 or bf16, which may be
// unaligned. Converts moments that are stored in the other dtype. To be followed by finish_writes (ops/device.h).
void write_stored(Device device, const std::byte* from, DType dtype, TensorView values, TensorView near);

}  // namespace mw
