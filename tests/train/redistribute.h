// Moves the states of a run in memory from one layout or placement to another, as a saved and loaded checkpoint would:
// what checkpoints, migration and changes of a running engine are compared with.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace mw {

// Bytes of each of the two host buffers of a rank, one to send from and one to receive into.
constexpr int64_t kRedistributeBytes = int64_t{32} << 20;

// What this rank did.
struct Redistributed {
  int64_t sent_bytes = 0, received_bytes = 0;  // to and from other ranks
  int64_t kept_bytes = 0;                      // copied from its own memory
  int64_t rounds = 0;                          // exchanges
};

// Overwrites master weights, moments and selection biases (aux-loss-free balancing) of `to` with those of `from`,
// bit for bit (moments are converted if memory.moments differs), then refreshes the weight copies that forward reads.
// Both engines are of the same model and the same world; layout (EP, TP, PP, ZeRO, schedule, shares), placement,
// train.dtype and device may differ. `from` is not changed; gradients do not move. Every element leaves one rank only
// and reaches each rank that needs it once (layout/state_moves.h). No file is written.
//
// Memory: both engines are in memory, and each rank has two buffers of `buffer_bytes` on the host (more where that is
// less than 4 bytes for each peer). States travel in as many rounds of one all_to_all as these buffers need.
// Not to be called while a CheckpointSave of either engine is under way. Collective over the world; deterministic.
// Errors: config, when the engines differ in model or ranks.
Redistributed redistribute(Engine& from, Engine& to, int64_t buffer_bytes = kRedistributeBytes);

}  // namespace mw
