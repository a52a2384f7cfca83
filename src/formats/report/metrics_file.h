// Reads metrics.jsonl: curves over steps, and the expert load at some of them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mw {

struct Curve {
  std::vector<double> steps, values;  // of the same length; steps are increasing, values finite
};

struct LoadSample {
  double step = 0;
  std::vector<std::vector<double>> load;  // [MoE layer][expert], as in the file
  // [MoE layer][expert-parallel rank], as in the file; empty where it has none.
  std::vector<std::vector<double>> ranks = {};
};

// A run's description of itself, written with its first step (docs/formats.md, `run`).
struct RunDescription {
  double step = 0;                                          // the step whose line contains it
  std::vector<std::pair<std::string, std::string>> fields;  // in the order of the file
};

struct MetricsHistory {
  std::map<std::string, Curve> curves;  // by field; those of an object are named "work_ms.matmul"
  std::vector<LoadSample> loads;        // at most `load_samples` steps, evenly spread over the file
  std::vector<RunDescription> runs;     // one for each start; none in files of older versions
  int64_t broken_lines = 0;             // skipped lines that are not JSON objects with a step
  // The step from which on ranks, layout and dtype did not change any more (they may change when a run is resumed).
  double setup_from = std::numeric_limits<double>::lowest();

  const Curve& curve(const std::string& name) const;  // empty when there is none
};

// Reads the file. Where a run resumed from an earlier step, the older lines of that step and later ones are ignored.
// Errors: Exit::data naming the path when it cannot be read or has no step.
MetricsHistory read_metrics(const std::string& path, int load_samples);

}  // namespace mw
