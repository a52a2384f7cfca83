// When each action of a schedule runs, without running it.
#pragma once

#include <span>
#include <vector>

#include "layout/schedule/schedule.h"

namespace mw {

// What one micro-batch costs in one stage, in any unit of time. A whole backward is the sum of its two parts.
struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double latency = 0;     // of a message that this stage sends
  double statistics = 0;  // of their reduction
  double gradients = 0;   // of their reduction, once per step
};

struct ActionTime {
  double begin = 0, end = 0;
};

struct RankTime {
  double begin = 0, end = 0;  // of the first and last action that takes time
  double busy = 0;            // forward and backward
  double gaps() const { return end - begin - busy; }
};

struct Timeline {
  std::vector<std::vector<ActionTime>> actions;  // as the schedule's
  std::vector<RankTime> ranks;
  double makespan = 0;  // from 0 to the end of the last action of all
  // Share of the makespan in which the rank computes nothing.
  double bubble(int rank) const { return makespan > 0 ? 1 - ranks[static_cast<size_t>(rank)].busy / makespan : 0; }
};

// Runs the lists by the rules of layout/schedule/schedule.h. A rank does one action at a time. A message moves once its
// send was reached and its receive is reached, and takes the sender's latency; the receive ends with it, a send takes
// no time. `costs`: by stage. Deterministic. validate_schedule (layout/schedule/schedule_check.h) says what else a
// schedule must keep. Errors: internal, where ranks deadlock: names the action of each rank and what it waits for.
Timeline simulate(const Schedule& schedule, std::span<const StageCost> costs);
// Every stage alike.
Timeline simulate(const Schedule& schedule, const StageCost& cost = {});

}  // namespace mw
