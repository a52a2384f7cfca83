// Routing in `verify`: records the choices of a run, forces or replays choices, and compares the records of all ranks.
#pragma once

#include "comm/comm.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "train/verify/routing_check.h"

namespace mw {

// Whether moe.forced_load replaces the learned choices.
bool forces_routing(const RunSpec& run);

// An empty record for the choices of one step, for the tokens that this rank of the plan routes.
Routing empty_routing(const Plan& plan);
// Fills in the choices of moe.forced_load in a step. plan: of one rank that routes all tokens.
void force_routing(const Plan& plan, int64_t step, Routing& routing);

// Taps that record a run's choices and gate weights in `own`, unless moe.forced_load forces them, and that replay the
// choices in `replayed`; with_drops: also the rows that the capacity dropped. Both must outlive the taps.
TapProvider tap_routing(const RunSpec& run, Routing& own, const Routing* replayed = nullptr, bool with_drops = false);

// Gives all ranks the routing of rank 0. Collective over `comm`.
void share_routing(Comm& comm, Routing& global);
// The part of the global record that belongs to this rank's tokens, which are contiguous in every micro-batch.
Routing local_part(const Plan& plan, const Routing& global);

// Sums the differences over all ranks, micro-batches and layers. alike: the input of each layer is the reference's.
// Otherwise only the first differing layer of a micro-batch counts for the widest gap, because later differences may
// follow from it. Collective over `comm`, the world of the layout.
RoutingDifference compare_all_routing(Comm& comm, const Engine& layout, const Routing& expected, const Routing& got,
                                      bool alike);

}  // namespace mw
