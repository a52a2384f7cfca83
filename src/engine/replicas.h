// Replicas of experts in a running engine (moe.replica_slots): their gradients return to the homes of the experts
// before these are summed over EDP ranks, and they get new weights after the update. Nothing else knows of them.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "moe/replica_exchange.h"

namespace mw {

// To be called when a layer's gradients are complete, in the last backward pass of a step. Collective over EP.
void return_replica_gradients(Engine& engine, int64_t layer);

// To be called when the packed weights of experts have changed, or where their replicas are. Returns what this rank
// sent and received. Collective over EP.
CopiedBytes refresh_replicas(Engine& engine);

}  // namespace mw
