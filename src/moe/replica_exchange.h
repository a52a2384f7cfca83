// What the home of an expert and its replicas exchange in every step: gradients on the way home, weights on the way
// out. Both go through the replicas of a layer in one order on all ranks, by expert and then by rank.
#pragma once

#include <cstdint>
#include <span>

#include "comm/comm.h"
#include "config/faults.h"
#include "core/stream.h"
#include "layout/placement.h"
#include "ops/matmul.h"

namespace mw {

// Adds the gradients of replicas to those of their homes, in the order of ranks. homes [e, n, k]: of the experts that
// have their home here, in slot order; replicas: of this rank's replica slots; both of one dtype. received: memory for
// one gradient, of that dtype. Gradients are complete for work enqueued later. Collective over `ep`.
void add_replica_gradients(Stream& stream, Comm& ep, const ExpertPlacement& placement, TensorView homes,
                           TensorView replicas, TensorView received, Fault fault = Fault::none);

struct CopiedBytes {
  int64_t sent = 0, received = 0;
};
// Overwrites the forms that products read of the weights of replicas with those of their homes: packed forms, or values
// where nothing is packed. Returns what this rank sent and received. Ranks must pack alike. Collective over `ep`.
CopiedBytes copy_to_replicas(Stream& stream, Comm& ep, const ExpertPlacement& placement, std::span<const Weight> homes,
                             std::span<const Weight> replicas);

}  // namespace mw
