// Reads metrics.jsonl back: curves over steps, and the load of experts at some of them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mw {

struct Curve {
  std::vector<double> steps, values;  // of the same length; steps rise; only finite values
};

struct LoadSample {
  double step = 0;
  std::vector<std::vector<double>> load;  // [MoE layer][expert], as in the file
};

// What a run said of itself before its first step (docs/formats.md, `run`).
struct RunDescription {
  double step = 0;                                          // whose line holds it
  std::vector<std::pair<std::string, std::string>> fields;  // in the order of the file
};

struct MetricsHistory {
  std::map<std::string, Curve> curves;  // by field; those of an object are named "work_ms.matmul"
  std::vector<LoadSample> loads;        // of at most `load_samples` steps, evenly spread over the lines
  std::vector<RunDescription> runs;     // one for each start; none in files of older versions
  int64_t broken_lines = 0;             // passed over: no JSON objects with a step
  // Where ranks, layout or dtype last changed, as they may when a run is resumed.
  double setup_from = std::numeric_limits<double>::lowest();

  const Curve& curve(const std::string& name) const;  // empty when there is none
};

// Where a run went back to an earlier step, what was there of that step and later ones is left out. Errors:
// Exit::data naming the path when it cannot be read or has no step.
MetricsHistory read_metrics(const std::string& path, int load_samples);

}  // namespace mw
