// Proof that a schedule computes what it should and ends, without running it.
#pragma once

#include <vector>

#include "layout/schedule/schedule.h"

namespace mw {

// Micro-batches whose activations are live at once, to the end of backward or backward_weight. In a stage they live
// from when its input arrives: receive_activation, or forward of the stage before where that is on the same rank;
// forward in the first stage. A rank counts what came from a stage of its own only from forward on.
struct ScheduleReport {
  std::vector<int64_t> stage_peak;  // by stage
  std::vector<int64_t> rank_peak;   // by rank: the most of all its stages together, in stage activations
};

// Proves the rules of layout/schedule/schedule.h: that every stage does everything once for every micro-batch, on its
// rank and in order; that every send has its receive, in the same order; that a payload is sent before the next one
// overwrites it and used before the next one is received; that no rank waits for ever although no transfer ends before
// its receive is reached.
//
// A rank here stands for all its replicas. They meet, before the list, in the count of labels; in forward, in the
// exchanges of routed rows (their counts, dispatch, combine) and in what TP gathers, sums and shares (embedding,
// attention, dense layers, tensor-sharded experts); in backward in the same the other way, in rows dispatched again,
// and at the loss in what TP shares of it; in reduce_statistics; and in the sums of gradients over DP, EDP and the
// stage, inside the last backward or behind it. All of them run the one list that the schedule has for their rank, and
// messages stay within one replica. Let one replica of every rank run to the end in some order of all actions; then all
// replicas can do each action together in that same order, so a meeting never lacks one who waits elsewhere.
//
// Stages meet each other only in what a rank does when its last reduce_gradients has come and, by the rules, nothing is
// left that another rank waits for: the sum of tied embeddings between the first and the last stage, then the sums that
// end the step and the update's copies. Hence one replica of each rank is the whole proof;
// tests/layout/schedule_meetings_test.cpp holds it against a machine of all ranks.
// Errors: internal, with rank, position and action.
ScheduleReport validate_schedule(const Schedule& schedule);

}  // namespace mw
