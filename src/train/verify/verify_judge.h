// The acceptance rules of `verify`: decides, from the numbers of a step in the layout and in the reference, whether
// they agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_spec.h"
#include "config/run_spec.h"
#include "engine/step.h"
#include "train/verify/routing_check.h"

namespace mw {

// kink: only gradients differ, and by so little that a value rounded to the other side of a kink of relu or
// model.clip_qkv would explain it.
enum class Verdict : int64_t { passed, kink, failed };

// The difference for one tensor, or for one expert's part of it.
struct GradientDifference {
  std::string name;
  double difference = 0;  // norm of (layout - reference); infinite where one of them is not a number
  double norm = 0;        // of the reference
  double noise = 0;  // norm of what rounding alone changes in the reference (measure_rounding_noise); 0: not measured
};

// Largest relative errors that pass.
struct Tolerances {
  double loss = 0, sums = 0, gradient = 0;
  double kink = 0;  // of gradients, limit for Verdict::kink; 0 without kinks
  // fp32: loads and dropped rows must be equal, and routing may differ only where scores nearly tie.
  bool exact = true;
};
Tolerances tolerances(const RunSpec& run, const ModelSpec& model);

// Relative to the gradient's own norm, or to 1e-6 of the global norm if that is larger.
double relative_error(const GradientDifference& gradient, double global_norm);
// The largest relative error of this gradient that passes: the tolerance, or several times its rounding noise if that
// is larger. A gradient that cancels to zero consists of noise and has no correct digits to compare.
double largest_error(const GradientDifference& gradient, double global_norm, const Tolerances& tolerances);
// Whether a gradient is beyond the tolerance, so that its rounding noise decides. Never in bf16.
bool needs_noise(const std::vector<GradientDifference>& gradients, double global_norm, const Tolerances& tolerances);

struct Judgement {
  Verdict verdict = Verdict::passed;
  std::vector<std::string> lines;  // for the log
};

Judgement judge_step(const StepStats& expected, const StepStats& got, const std::vector<GradientDifference>& gradients,
                     const Tolerances& tolerances);

// difference: when both runs choose freely. replayed: when everything before each layer is the reference's. Both must
// be explained by rounding.
Judgement judge_routing(const RoutingDifference& difference, const RoutingDifference& replayed,
                        const Tolerances& tolerances);

}  // namespace mw
