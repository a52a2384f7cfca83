// How long steps of a run take with each transport, for the profile of its machine (`moewright probe RUN`).
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "config/run_spec.h"

namespace mw {

// Refuses a run whose transports cannot be compared. Errors: config, with key and cure.
void check_transports_to_time(const RunSpec& run, int ranks);

// Trains some steps of the run with each transport that moe.transport = "auto" weighs for it and that fits in memory,
// and puts transport_times into the profile that run.plan.platform names: factors of the MoE layers' time with which
// the planner predicts the median of these steps. The batch is the whole one, whatever train.batch_ramp says. Where
// that needs a factor beyond 0.1 to 10, the profile stays as it is. Checkpoints and metrics of the run stay untouched.
// say: called on rank 0 with a line for each transport. Collective over the world. Errors: as check_transports_to_time,
// make_engine, train_step.
void time_transports(World& world, RunSpec run, const std::function<void(const std::string&)>& say);

}  // namespace mw
