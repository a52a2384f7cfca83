// ZeRO stage 1: every rank updates the shard of the weights that it owns (layout/gradient_blocks.h); then the weights
// that forward reads are gathered from all owners.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"

namespace mw {

// Gathers updated weights: in fp32 where ranks hold whole master weights, in bf16 where a packed form is a plain copy,
// and matrix by matrix in fp32 where packing needs the whole matrix. No-op for blocks that are not sharded.
class WeightGathers {
 public:
  // All references must outlive this object.
  WeightGathers(ParamStore& params, MeshComms& comms, Stream& stream)
      : params_(params), comms_(comms), stream_(stream) {}

  // To be called when the owned elements of `p` and of its copy_bf16 are written. Starts gathering them, overlapping
  // with work enqueued next. Collective over the replicas of p, in the same order on all ranks.
  void add(Parameter& p);
  // Finishes all gathers: the weights are valid for work enqueued afterwards, except the packed forms of whole masters
  // (ParamStore::repack_updated). Collective over the replicas of all of them.
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

// To be called after the master weights were set: refreshes all copies that forward reads. Collective over the replicas
// of all parameters.
void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream);

}  // namespace mw
