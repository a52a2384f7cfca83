// Runs a schedule: the same list of actions that the planner simulates.
#pragma once

#include <functional>
#include <vector>

#include "spec/schedule.h"

namespace mw {

struct ActionHandlers {
  std::function<void(int64_t micro_batch)> forward, reduce_statistics, backward;
  std::function<void()> reduce_gradients;
};

// Calls the handler of every action of `stage`, in order. An empty handler skips its actions.
void run_schedule(const std::vector<Action>& schedule, int stage, const ActionHandlers& handlers);

}  // namespace mw
