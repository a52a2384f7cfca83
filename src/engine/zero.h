// ZeRO stage 1: every rank updates the shard of the weights that it owns (layout/gradient_blocks.h); then the weights
// that forward reads are gathered from all owners.
//
// Terms. Master weights: the fp32 weights that the optimizer updates. Packed form: the copy of a matrix that GEMMs
// read, in an order of elements that suits them (bf16 runs only). Replicas of a parameter: the ranks that use the same
// weights and sum their gradient: DP ranks, for routed experts EDP ranks. A block: the gradients that one group of
// replicas sums.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"

namespace mw {

// Gathers updated weights over the replicas of each parameter. Three cases:
//   1. Every rank holds all master weights of the parameter (fp32 runs; in bf16 runs norms, embeddings and others
//      that are not matrices of a layer): gathers the master weights in fp32.
//   2. Every rank holds only its shard of the master weights, and the packed form is a plain bf16 copy
//      (Parameter::copy_bf16; GPUs, sides that are multiples of 64): gathers the copy in bf16.
//   3. As 2, but the packed form is not a plain copy: gathers one matrix after the other in fp32, and packs each.
// No-op for parameters whose block is not sharded (one replica, or no ZeRO).
class WeightGathers {
 public:
  // All references must outlive this object.
  WeightGathers(ParamStore& params, MeshComms& comms, Stream& stream)
      : params_(params), comms_(comms), stream_(stream) {}

  // To be called when the update has written this rank's shard of `p` (and of p.copy_bf16, if there is one). Starts the
  // gather in cases 1 and 2, so that it overlaps with work enqueued next. Collective over the replicas of p, in the
  // same order of parameters on all ranks.
  void add(Parameter& p);
  // Finishes the gathers of all added parameters, and does those of case 3. The weights are then valid for work
  // enqueued afterwards. A tied embedding in a bf16 run (case 1) also has a packed form, which is still the old one:
  // call ParamStore::repack_updated. Collective over the replicas of every added parameter.
  void finish();

 private:
  Comm& replicas(const Parameter& p) const { return comms_.of(p.replicas); }
  void pack_gathered(const Parameter& p);

  ParamStore& params_;
  MeshComms& comms_;
  Stream& stream_;
  std::vector<std::unique_ptr<Pending>> pending_;
  std::vector<const Parameter*> to_pack_;
};

// To be called after the master weights were set, for example from a checkpoint: makes all copies that forward reads
// equal to them. Collective over the replicas of every parameter.
void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream);
// The same for some parameters, in the same order on all of their replicas.
void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream, std::span<Parameter* const> which);

}  // namespace mw
