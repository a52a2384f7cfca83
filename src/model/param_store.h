// Parameters of one rank: the rows of the parameter table with their memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_store.h"
#include "ops/matmul.h"
#include "spec/gradient_blocks.h"
#include "spec/plan.h"

namespace mw {

struct Parameter {
  ParamRow row;
  bool is_copy = false;              // tied embeddings beside the head: the first stage's are the ones that count
  std::vector<SlicePiece> pieces;    // which parts of the global tensor make up the local one
  Replicas replicas = Replicas::dp;  // that sum its gradient
  // Elements of the local tensor: what this rank updates and has moments of, and what `master` holds. All of them
  // without ZeRO (spec/gradient_blocks.h).
  ElementRange owned, held;
  bool holds_cut = false;     // `held` is what is owned, on every rank
  int64_t block_begin = 0;    // of the gradient in its block
  TensorView master;          // f32, local shape; the owned elements where a cut is held; empty where split
  TensorView rest;            // u16, held elements of split master weights: what copy_bf16 lacks of them; else empty
  TensorView grad;            // local shape, f32 or as memory.expert_gradients says; empty when not trained by gradient
  TensorView adam_m, adam_v;  // f32 or bf16, of the owned elements; empty also when the plan has none
  std::vector<Weight> weights;  // one per matrix (e for experts), without values where the master is cut or split;
                                // none when no product reads it
  TensorView copy_bf16;         // the packed forms, where they are a plain copy of the local tensor; else empty

  int64_t numel() const;  // of the local tensor
  bool is_split() const { return rest.dtype == DType::u16; }
  // The upper halves of held master weights that are split.
  TensorView held_near() const;
  // Held master weights from `at` on, in one piece or split. From any thread; finish_writes() ends it (ops/device.h).
  void set_master(Device device, int64_t at, std::span<const float> values) const;
  float master_at(int64_t at) const;  // a page at a time where the memory is a GPU's
  // What the update of the owned elements reads and writes, flat: the master weights or their rests.
  TensorView owned_master() const;
  TensorView owned_grad() const;
  TensorView owned_copy() const;  // empty where there is none
};

// Slots of a table of bytes, for TensorStore.
std::vector<TensorSlot> to_slots(const std::vector<ByteRow>& rows);

class ParamStore {
 public:
  // Takes memory for plan.parameter_rows, of offloaded ones by `reserve_offloaded`. Errors: memory.
  explicit ParamStore(const Plan& plan, const Reserve& reserve = reserve_host,
                      const Reserve& reserve_offloaded = reserve_host);

  std::vector<Parameter>& all() { return params_; }
  const std::vector<Parameter>& all() const { return params_; }
  // Errors: internal for an unknown name.
  Parameter& find(const std::string& name);
  bool has(const std::string& name) const;

  // Initial weights as a pure function of (seed, name, global index): the same in every layout and on any number of
  // threads.
  // Each tensor is a scope of the trace: on a large model this takes minutes, and a watchdog must see it move.
  void initialise(uint64_t seed, Stream& stream);
  // How the gradients that these ranks sum are cut over them.
  const GradientBlock& block(Replicas replicas) const { return blocks_.of(replicas); }
  // Room for the fp32 values of one matrix that is to be packed; empty where no cut matrix needs it.
  TensorView gathered() const { return gathered_; }
  // f32 [2, n]: in which bf16 gradients of replicas are summed; empty where there are none.
  TensorView sum_pieces() const { return sum_pieces_; }

  // Refreshes the packed forms of every weight from the master weights, but of those held as a cut: parallel/zero.h
  // does all. Nothing to do in fp32 runs, and for split weights.
  void repack(Stream& stream);
  // The same after an update that has written the owned part of every Parameter::copy_bf16 and gathered the others: as
  // copies where the master weights are held as a cut, else as master weights.
  void repack_updated(Stream& stream);
  // Of all but the routed experts, whose gradients the first backward pass of a step overwrites.
  void zero_gradients(Stream& stream);
  int64_t fixed_bytes() const { return store_.fixed_bytes(); }  // of the device

 private:
  void make_weights(Parameter& p, const LocalParam& local);
  bool has_row(const std::string& name) const { return store_.has(name) || offloaded_.has(name); }
  TensorView view_of(const std::string& name) {
    return offloaded_.has(name) ? offloaded_.fixed(name) : store_.fixed(name);
  }

  TensorStore store_, offloaded_;
  std::vector<Parameter> params_;
  GradientBlocks blocks_;
  TensorView gathered_, sum_pieces_;
};

}  // namespace mw
