// What is known of a run before its first step, to stand beside what is measured.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/estimate.h"
#include "train/engine.h"

namespace mw {

// Seconds of a step: of the rank that computes longest, of the one that updates longest, and what is left: waiting for
// exchanges, sums and messages, and in a pipeline for its turn.
struct StepParts {
  double compute = 0, waiting = 0, optimizer = 0;
};

struct Forecast {
  std::string platform;          // plan.platform; empty: nobody asked for a time
  std::optional<StepTime> time;  // of a step there, as `plan --why` has it
  double peak_flops_per_s = 0;   // of a rank there, with `time`
  std::string why_no_time;       // where a platform is named
  double exchanged_bytes = 0;    // plan/volumes.h
};

// Reads the profile that plan.platform names. One that is missing or of another machine ends no run: it says why.
Forecast make_forecast(const Plan& plan, int ranks);
std::string describe(const Forecast& forecast);  // "" without a platform

// A line for each prediction, with what was measured beside it. step_seconds: of every step; the first one is left out
// of medians where there are others, since it prepares. parts: of those of these steps that have them. sent: bytes of
// routed rows in all these steps, all ranks.
std::vector<std::string> compare(const Forecast& forecast, std::span<const double> step_seconds,
                                 std::span<const StepParts> parts, double sent);

// How long so many steps may take on CPUs of which no profile is known, from the rate of one product of this model's
// width measured now.
double estimate_seconds(Engine& engine, int64_t steps);

}  // namespace mw
