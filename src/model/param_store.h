// The parameters of one rank: rows of the parameter table and their memory (master weights, gradients, moments, packed
// forms).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_store.h"
#include "layout/gradient_blocks.h"
#include "layout/plan.h"
#include "ops/matmul.h"

namespace mw {

struct Parameter {
  ParamRow row;
  bool is_copy = false;              // last stage's copy of tied embeddings; the first stage's is authoritative
  std::vector<SlicePiece> pieces;    // the parts of the global tensor that form the local one
  Replicas replicas = Replicas::dp;  // the ranks that sum its gradient
  // Ranges of elements of the local tensor. owned: updated by this rank, which has their moments. held: stored in
  // `master`. Without ZeRO both are all elements (layout/gradient_blocks.h).
  ElementRange owned, held;
  bool holds_cut = false;   // every rank holds only the elements that it owns
  int64_t block_begin = 0;  // offset of the gradient in its block
  TensorView master;        // f32, local shape, or only the owned elements (holds_cut); empty where split
  TensorView
      rest;  // u16: low 16 bits of split master weights (the held elements), high bits are in copy_bf16; else empty
  TensorView grad;  // local shape, f32 or as memory.expert_gradients says; empty when not trained by gradient
  // Moments, f32 or bf16, of the owned elements; empty also when the plan has none. Muon has adam_m alone, its
  // momentum.
  TensorView adam_m, adam_v;
  std::vector<Weight> weights;  // one per matrix (e for experts), without values where the master is cut or split;
                                // none when no product reads it
  TensorView copy_bf16;         // the packed forms, if they are a plain bf16 copy of the local tensor; else empty

  int64_t numel() const;            // of the local tensor
  int64_t matrix_elements() const;  // of one of `weights`, which must not be empty
  bool is_split() const { return rest.dtype == DType::u16; }
  // The high parts of held master weights that are split.
  TensorView held_near() const;
  // Writes held master weights from `at` on, split or not. Thread-safe; call finish_writes() (ops/device.h) after the
  // last.
  void set_master(Device device, int64_t at, std::span<const float> values) const;
  float master_at(int64_t at) const;  // slow on a GPU: migrates pages
  // The operands of the update of the owned elements, flat: the master weights (or their low parts), gradients, and
  // copies.
  TensorView owned_master() const;
  TensorView owned_grad() const;
  TensorView owned_copy() const;  // empty if there is no copy
};

// Where Muon's matrices become orthogonal (layout/muon_plan.h): f32 matrices [2, n], gram [2, n], sums [n]; and parts
// [n], where ranks exchange them. Empty without Muon.
struct MuonMemory {
  TensorView matrices, gram, sums, parts;
};

// Recomputes the packed forms of a parameter from its master weights, if it has both.
void repack(Stream& stream, const Parameter& p);

// Converts rows of the byte table to slots for TensorStore.
std::vector<TensorSlot> to_slots(const std::vector<ByteRow>& rows);

class ParamStore {
 public:
  // Allocates plan.parameter_rows, the offloaded ones with `reserve_offloaded`. Errors: memory.
  explicit ParamStore(const Plan& plan, const Reserve& reserve = reserve_host,
                      const Reserve& reserve_offloaded = reserve_host);

  std::vector<Parameter>& all() { return params_; }
  const std::vector<Parameter>& all() const { return params_; }
  // Errors: internal for an unknown name.
  Parameter& find(const std::string& name);
  bool has(const std::string& name) const;

  // Initial weights as a pure function of (seed, name, global index): the same in every layout and for any number of
  // threads. Each tensor is a scope of the trace: on a large model this takes minutes, and the watchdog must see
  // progress.
  void initialise(uint64_t seed, Stream& stream);
  // This rank's replica slots, one entry for each expert tensor: its row, the gradient and the weights that products
  // read; no more. Which experts they have, plan.placements says.
  const std::vector<Parameter>& replicas() const { return replicas_; }
  // Memory for one gradient of a replica; empty without replica slots.
  TensorView replica_gradient() const { return replica_gradient_; }
  // How the gradients that these ranks sum are divided among them (ZeRO).
  const GradientBlock& block(Replicas replicas) const { return blocks_.of(replicas); }
  // Scratch for the fp32 values of one matrix to be packed; empty where no sharded matrix needs it.
  TensorView gathered() const { return gathered_; }
  // f32 [2, n]: two buffers in which bf16 gradients of replicas are summed; empty where there are none.
  TensorView sum_pieces() const { return sum_pieces_; }
  // Of the gradients of routed experts, in runs whose products may add them (squares_when_stored); else without limbs.
  SquareSums& squares() { return squares_; }
  const MuonMemory& muon() const { return muon_; }

  // Recomputes the packed forms of every weight from the master weights, except of those whose masters are sharded
  // (engine/zero.h refreshes all). No-op in fp32 runs, and for split weights.
  void repack(Stream& stream);
  // Tells the parameters of routed experts which experts of the plan's placements they hold. Moves nothing.
  void place_experts(const Plan& plan);
  // The same after an update that has written the owned part of every Parameter::copy_bf16 and gathered the rest: from
  // the copies where the master weights are sharded, otherwise from the master weights.
  void repack_updated(Stream& stream);
  // Zeroes all gradients except those of matrices that the first backward pass of a step overwrites.
  void zero_gradients(Stream& stream);
  int64_t fixed_bytes() const { return store_.fixed_bytes(); }  // of the device

 private:
  // at: what the names of its rows begin with, behind their kind.
  void make_weights(Parameter& p, const LocalParam& local, const std::string& at = "");
  void make_replicas(const ParamRow& row, LocalParam local, int64_t slots);
  bool has_row(const std::string& name) const { return store_.has(name) || offloaded_.has(name); }
  TensorView view_of(const std::string& name) {
    return offloaded_.has(name) ? offloaded_.fixed(name) : store_.fixed(name);
  }

  TensorStore store_, offloaded_;
  std::vector<Parameter> params_, replicas_;
  GradientBlocks blocks_;
  TensorView gathered_, sum_pieces_, replica_gradient_;
  SquareSums squares_;
  MuonMemory muon_;
};

}  // namespace mw
