// The transport of an MoE layer, made from its kind and the layer's memory.
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

namespace mw {

// What a transport can be made of. comms and store must outlive it.
struct TransportParts {
  MeshComms& comms;
  const ExpertPlacement& placement;
  const Islands& islands;      // of the EP group
  const WeightGather& gather;  // of the layer
  ResidentExperts experts;
  ExpertScratch scratch;
  TensorStore& store;
  const LayerRows& row;  // names of the layer's rows in the store
  int64_t row_chunks = 1;
  bool dispatches_again = false;  // rows are dispatched once more before the backward pass
  Faults faults = {};
};

// Errors: unsupported, for a placement that the transport cannot serve.
std::unique_ptr<Transport> make_transport(TransportKind kind, const TransportParts& parts);

}  // namespace mw
