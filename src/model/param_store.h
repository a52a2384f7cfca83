// Parameters of one rank: the rows of the parameter table with their memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor_store.h"
#include "ops/matmul.h"
#include "spec/plan.h"

namespace mw {

struct Parameter {
  ParamRow row;
  bool is_copy = false;             // tied embeddings beside the head: the first stage's are the ones that count
  std::vector<SlicePiece> pieces;   // which part of the global tensor lies here, along axis 0
  TensorView master;                // f32, local shape
  TensorView grad, adam_m, adam_v;  // f32; empty when not trained by gradient, moments also when the plan has none
  std::vector<Weight> weights;      // one per matrix (e for experts); empty when no product reads it
  TensorView copy_bf16;             // the packed forms, where they are a plain copy of `master`; else empty
};

// Slots of a table of bytes, for TensorStore.
std::vector<TensorSlot> to_slots(const std::vector<ByteRow>& rows);

class ParamStore {
 public:
  // Takes memory for plan.parameter_rows. Errors: memory.
  explicit ParamStore(const Plan& plan, const Reserve& reserve = reserve_host);

  std::vector<Parameter>& all() { return params_; }
  const std::vector<Parameter>& all() const { return params_; }
  // Errors: internal for an unknown name.
  Parameter& find(const std::string& name);
  bool has(const std::string& name) const;

  // Initial weights as a pure function of (seed, name, global index): the same in every layout and on any number of
  // threads.
  void initialise(uint64_t seed, int threads = 1);
  // Refreshes the packed forms of every weight from the master weights; nothing to do in fp32 runs.
  void repack(Stream& stream);
  // The same after an update that has kept every Parameter::copy_bf16 itself.
  void repack_updated(Stream& stream);
  // Of all but the routed experts, whose gradients the first backward pass of a step overwrites.
  void zero_gradients(Stream& stream);
  int64_t fixed_bytes() const { return store_.fixed_bytes(); }

 private:
  TensorStore store_;
  std::vector<Parameter> params_;
};

// Bytes of the parameter that a global element range [begin, end) of axis 0 has here are contiguous: rows of axis 0.
int64_t elements_per_entry(const ParamRow& row);

}  // namespace mw
