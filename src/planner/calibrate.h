// Refines a platform profile by what a run measured, so that the plan of that run's layout meets its median step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/search.h"

namespace mw {

// Seconds of a step, as docs/formats.md has `measured_ms`.
struct MeasuredParts {
  double compute = 0, waiting = 0, optimizer = 0;
};

// One line of metrics.jsonl: what ran, and how long it took.
struct MeasuredStep {
  int64_t ranks = 0;
  std::string layout, dtype;
  double tokens = 0, flops_per_token = 0, seconds = 0;
  std::optional<MeasuredParts> parts;
};

// The last thousand steps of metrics.jsonl at `path`, but for the three that follow a start of the file. A last line
// without its end is passed over: the run may be writing it. Errors: data, with path and line, for what is no step of a
// run, and for files without one or of a version that does not name its layout.
std::vector<MeasuredStep> read_measured_steps(const std::string& path);
// The same of the file's text.
std::vector<MeasuredStep> parse_measured_steps(std::string_view text, const std::string& path);

struct Calibration {
  PlatformProfile profile;
  std::vector<std::string> lines;  // what was measured, and what was changed by how much
};

// Scales the profile of `request` until the plan of its run file's layout meets the median of the `steps` that ran it:
// rates and latencies of compute, the memory rate of the update, and the links that join the ranks, each by its own
// measured part, where parts were measured; else all by compute. `source` names the metrics. Errors: config, for steps
// of another run than that of the request, too few of them, and compute that is wrong by more than thirty times.
Calibration calibrate(const Request& request, const std::vector<MeasuredStep>& steps, const std::string& source);

}  // namespace mw
