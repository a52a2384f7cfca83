// What moe.transport = "auto" means for a run: the transport by which the profile of its platform predicts the fastest
// step.
#pragma once

#include <string>

#include "config/run_spec.h"
#include "layout/islands.h"

namespace mw {

struct TransportChoice {
  std::string name = "auto";             // for moe.transport
  double seconds = 0, flat_seconds = 0;  // of a step, predicted
  std::string why_none;                  // where nothing was chosen for a reason worth telling
};

// Chooses where moe.transport is "auto", plan.platform names a profile, and EP groups lie on several nodes and fill
// them: flat, or halo or bypass if a step with it takes at most 0.98 of the time and fits in memory. A function of its
// arguments and the profile alone; nodes: of the ranks. Elsewhere the name is the run's.
TransportChoice choose_auto_transport(RunSpec run, int ranks, const NodeMap& nodes);

// One line for the start of a run; empty where there is nothing to tell.
std::string describe(const TransportChoice& choice, const std::string& platform);

}  // namespace mw
