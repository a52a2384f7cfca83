// Executes a pipeline schedule: the same list of actions that the planner simulates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/trace.h"
#include "layout/schedule/schedule.h"

namespace mw {

using ActionHandlers = std::map<ActionKind, std::function<void(const Action&)>>;

// An action that was run, and when: nanoseconds of the steady clock. A GPU may do the work later.
struct ActionRecord {
  Action action;
  int64_t begin_ns = 0, end_ns = 0;
};

// Calls the handler of every action of a rank, in order; each is a scope of the trace. Errors: internal, for an action
// without a handler; exceptions of handlers.
std::vector<ActionRecord> run_schedule(const std::vector<Action>& schedule, const ActionHandlers& handlers,
                                       Trace& trace);

}  // namespace mw
