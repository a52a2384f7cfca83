// ZeRO stage 1: every rank updates the cut of the weights that it owns (spec/gradient_blocks.h), and what forward reads
// is gathered from all owners.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"

namespace mw {

// Gathers updated weights: fp32 ones where the master weights are whole, bf16 ones where a packed form is a plain copy,
// and matrix by matrix what must be whole to be packed. Nothing to do for blocks that are not cut.
class WeightGathers {
 public:
  // All must outlive it.
  WeightGathers(ParamStore& params, MeshComms& comms, Stream& stream)
      : params_(params), comms_(comms), stream_(stream) {}

  // The owned elements of `p` and of its copy_bf16 are written. Begins to gather them, beside what is enqueued next.
  // Collective over the replicas of p, in one order on all ranks.
  void add(Parameter& p);
  // All weights that were added are there for what is enqueued from then on, but for packed forms of whole masters
  // (ParamStore::repack_updated). Collective over the replicas of all.
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

// After the master weights were set: refreshes all that forward reads beside them. Collective over the replicas of all.
void refresh_weights(ParamStore& params, MeshComms& comms, Stream& stream);

}  // namespace mw
