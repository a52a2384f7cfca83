// Proof that a schedule computes what it should and ends, without running it.
#pragma once

#include <vector>

#include "spec/schedule.h"

namespace mw {

// Micro-batches whose activations are live at once, to the end of backward or backward_weight. In a stage they live
// from when its input arrives: receive_activation, or forward of the stage before where that is on the same rank;
// forward in the first stage. A rank counts what came from a stage of its own only from forward on.
struct ScheduleReport {
  std::vector<int64_t> stage_peak;  // by stage
  std::vector<int64_t> rank_peak;   // by rank: the most of all its stages together, in stage activations
};

// Proves the rules of spec/schedule.h: that every stage does everything once for every micro-batch, on its rank and in
// order; that every send has its receive, in the same order; that a payload is sent before the next one overwrites it
// and used before the next one is received; that no rank waits for ever although no transfer ends before its receive is
// reached.
//
// A rank here stands for all its replicas, which meet in the all-to-alls inside forward and backward, in the statistics
// and in the sums. All of them run the one list that the schedule has for their rank, and messages stay within one
// replica. Let one replica of every rank run to the end in some order of all actions; then all replicas can do each
// action together in that same order, so a meeting never lacks one who waits elsewhere. Hence one replica of each rank
// is the whole proof.
// Errors: internal, with rank, position and action.
ScheduleReport validate_schedule(const Schedule& schedule);

}  // namespace mw
