// What moe.transport = "auto" means for a run: for each MoE layer the transport for which the planner, with the profile
// that plan.platform names, predicts the fastest step. Without a profile a rule may take bypass on GPUs of one node.
#pragma once

#include <string>
#include <vector>

#include "config/run_spec.h"
#include "layout/islands.h"

namespace mw {

struct TransportChoice {
  // For moe.transport: one name, or a list by layer. If nothing was chosen, what the run file says; "auto" then is flat
  // (in_place if mesh.ep = 1).
  std::string name = "auto";
  double seconds = 0;       // predicted time of a step; 0: nothing was chosen
  double flat_seconds = 0;  // the same with flat
  std::string why_none;     // why the planner could not predict; empty otherwise
  std::string rule = {};    // what chose in its place, for the log; else empty
};

// [MoE layer][rows of each expert], of all MoE layers, listed rank by rank.
using MeasuredLoads = std::vector<std::vector<double>>;

// Chooses only if moe.transport is "auto", mesh.ep > 1, plan.platform names a profile, and all nodes have equally many
// ranks. Otherwise it returns the run's moe.transport unchanged. Of transports_to_try (planner/search.h) it takes for
// all layers the one with the fastest predicted step among those that fit in memory, if that step takes at most 0.95 of
// the time with flat; otherwise flat. A layer takes another one that stores the experts in the same way if, were all
// layers loaded as this one, a step would take less than 0.9 of the time. nodes: the node of every rank. before: the
// setting of a checkpoint of the same layout, which the resumed run keeps, and with it its numbers to the bit; or "".
// loads: measured ones, or empty: those of plan.balance, which all layers share. The result depends on the arguments
// and the profile alone.
// Without a profile, but with on_nvidia (ranks compute on NVIDIA GPUs) and all ranks on one node, it takes bypass if
// that sends at most half as many rows as flat in every MoE layer and experts do not move; a resumed run keeps
// `before`, if that is made of flat, halo and bypass. On two and four H200s steps of such models take 0.95 to 0.97 of
// the time with flat (docs/benchmarks.md).
TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes, const std::string& before = "",
                                      MeasuredLoads loads = {}, bool on_nvidia = false);

// Chooses again in a run whose moe.transport is `now`, by measured loads: for each layer as above, beginning with its
// own transport. Loads that move around a border between two transports therefore change a layer at most once.
TransportChoice choose_transport_again(RunSpec run, int ranks, const NodeMap& nodes, const std::string& now,
                                       MeasuredLoads loads);

// One line for the start of a run; empty if nothing was chosen and why_none is empty. platform: plan.platform.
std::string describe(const TransportChoice& choice, const std::string& platform);

}  // namespace mw
