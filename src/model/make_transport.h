// Makes the transport of an MoE layer: of a given kind, over the tensors that the byte table reserved for the layer.
#pragma once

#include <memory>

#include "comm/world.h"
#include "config/faults.h"
#include "layout/islands.h"
#include "layout/placement.h"
#include "layout/recompute.h"
#include "layout/transport.h"
#include "layout/weight_gather.h"
#include "moe/transport.h"
#include "moe/weight_cache.h"

namespace mw {

// What a transport is made of. comms, store and weight_cache must outlive the transport. placement, islands and row are
// copied or read while it is made, and need not outlive the call.
struct TransportParts {
  MeshComms& comms;
  const ExpertPlacement& placement;
  const Islands& islands;              // of the EP group
  const std::vector<int64_t>& speeds;  // of its ranks (expert_speeds in layout/shares.h)
  const WeightGather& gather;          // of the layer
  ResidentExperts experts, replicas;   // replicas: of the rank's replica slots
  ExpertScratch scratch;
  TensorStore& store;
  const LayerRows& row;  // row("received") is the name of this layer's tensor "received" in `store`
  int64_t row_chunks = 1;
  bool dispatches_again = false;        // rows are dispatched once more before the backward pass
  Fault fault = Fault::none;            // an error that a test injects (debug.fault)
  WeightCache* weight_cache = nullptr;  // of the rank, where the transport gathers weights
  int64_t layer = 0;                    // which asks it
};

// Errors: unsupported, for a placement that the transport cannot serve.
std::unique_ptr<Transport> make_transport(TransportKind kind, const TransportParts& parts);

}  // namespace mw
