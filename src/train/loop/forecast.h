// Predictions about a run before its first step, to be printed next to measurements.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "planner/estimate.h"
#include "planner/volumes.h"

namespace mw {

// The parts of a step's time in seconds: compute of the slowest rank, update of the slowest rank, and the rest: waiting
// for exchanges, sums and messages, and for the pipeline.
struct StepParts {
  double compute = 0, waiting = 0, optimizer = 0;
};

struct Forecast {
  std::string platform;          // plan.platform; empty: no prediction of time requested
  std::optional<StepTime> time;  // predicted for that platform, as by `plan --why`
  double peak_flops_per_s = 0;   // of a rank on that platform; valid with `time`
  std::string why_no_time;       // why `time` is missing although a platform is named
  LinkBytes exchanged;           // of routed rows in a step, all ranks
  std::string transport;         // by which, as moe.transport says it
};

// Reads the profile that plan.platform names. A missing profile, or one of another machine, is not an error:
// why_no_time says so.
Forecast make_forecast(const Plan& plan, int ranks);
std::string describe(const Forecast& forecast);  // "" without a platform

// One line per prediction, with the measurement next to it. step_seconds: of every step; the first one is excluded from
// medians if there are others, because it prepares. parts: of those of these steps that have them. sent: of routed
// rows in all these steps, all ranks.
std::vector<std::string> compare(const Forecast& forecast, std::span<const double> step_seconds,
                                 std::span<const StepParts> parts, Trace::SentBytes sent);

// Estimates the time of training with `samples` samples on CPUs without a profile, from the rate of one product of this
// model's width, measured now.
double estimate_seconds(Engine& engine, double samples);

}  // namespace mw
