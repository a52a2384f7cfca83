// What moe.transport = "auto" means for a run: the transport for which the planner, with the profile that plan.platform
// names, predicts the fastest step.
#pragma once

#include <string>

#include "config/run_spec.h"
#include "layout/islands.h"

namespace mw {

struct TransportChoice {
  // For moe.transport. If nothing was chosen, what the run file says; "auto" then is flat (in_place if mesh.ep = 1).
  std::string name = "auto";
  double seconds = 0, flat_seconds = 0;  // predicted time of a step, with `name` and with flat; 0: nothing was chosen
  std::string why_none;                  // why the planner could not predict; empty otherwise
};

// Chooses only if moe.transport is "auto", mesh.ep > 1, plan.platform names a profile, and all nodes have equally many
// ranks. Otherwise it returns the run's moe.transport unchanged. Of transports_to_try (planner/search.h) it takes the
// one with the fastest predicted step among those that fit in memory, if that step takes at most 0.98 of the time with
// flat; otherwise flat. nodes: the node of every rank. before: the transport of the checkpoint
// that the run resumes from, or "": a resumed run keeps it, and with it its numbers to the bit, unless the step
// with another takes at most 0.9 of the time. The result depends on the arguments and the profile alone.
TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before = "");

// One line for the start of a run; empty if nothing was chosen and why_none is empty.
std::string describe(const TransportChoice& choice, const std::string& platform);

}  // namespace mw
