// What moe.transport = "auto" means for a run: the transport for which the planner, with the profile that plan.platform
// names, predicts the fastest step.
#pragma once

#include <string>
#include <vector>

#include "config/run_spec.h"
#include "layout/islands.h"

namespace mw {

struct TransportChoice {
  // For moe.transport. If nothing was chosen, what the run file says; "auto" then is flat (in_place if mesh.ep = 1).
  std::string name = "auto";
  double seconds = 0;       // predicted time of a step; 0: nothing was chosen
  double flat_seconds = 0;  // the same with flat; 0: it cannot be chosen any more
  std::string why_none;     // why the planner could not predict; empty otherwise
};

// [layer][rows of each expert], of layers with equally many experts, listed rank by rank.
using MeasuredLoads = std::vector<std::vector<double>>;

// Chooses only if moe.transport is "auto", mesh.ep > 1, plan.platform names a profile, and all nodes have equally many
// ranks. Otherwise it returns the run's moe.transport unchanged. Of transports_to_try (planner/search.h) it takes the
// one with the fastest predicted step among those that fit in memory, if that step takes at most 0.98 of the time with
// flat; otherwise flat. nodes: the node of every rank. before: the transport of a checkpoint of the same layout, which
// the resumed run keeps, and with it its numbers to the bit; or "". loads: measured ones, or empty: those of
// plan.balance. The result depends on the arguments and the profile alone.
TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before = "",
                                      MeasuredLoads loads = {});

// Chooses again in a run with the transport `now`, by measured loads. Takes another transport only if its step takes at
// most 0.9 of the time with `now`, and none that stores the experts in another way. Otherwise as above.
TransportChoice choose_transport_again(RunSpec run, int ranks, const NodeMap& nodes, const std::string& now,
                                       MeasuredLoads loads);

// One line for the start of a run; empty if nothing was chosen and why_none is empty.
std::string describe(const TransportChoice& choice, const std::string& platform);

}  // namespace mw
