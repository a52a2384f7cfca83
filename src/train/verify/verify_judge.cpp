#include "train/verify/verify_judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace mw {
namespace {

constexpr double kNearTie = 1e-5;       // score gaps that rounding can close
constexpr double kSumsOverLoss = 10;    // bf16 rounds other sums more than the loss
constexpr double kKinkError = 1e-2;     // most that a value on the other side of a kink changes in a gradient
constexpr double kSmallestNorm = 1e-6;  // of the global norm
// Noise is measured with one sample, and norms of few elements vary: of 160 gradients that cancel to zero, over tensor
// parallelism of 2 and 4, half differed by less than the sample and the most by 3 times as much.
constexpr double kNoiseFactor = 8;
constexpr size_t kPrintedAlways = 3, kPrintedFailures = 40;

// Whether the derivative of the model jumps somewhere, where rounding decides which side a value is on.
bool has_kinks(const ModelSpec& model) {
  return std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) {
    return layer.attention.clip_qkv > 0 || layer.activation == Activation::relu ||
           layer.activation == Activation::clamped_swiglu;
  });
}

double scale_of(const GradientDifference& gradient, double global_norm) {
  return std::max(gradient.norm, kSmallestNorm * global_norm);
}

double relative(double a, double b) { return a == b ? 0.0 : std::abs(a - b) / std::max(std::abs(b), 1e-12); }

Verdict verdict_of(double error, double most, double at_kinks) {
  return error <= most ? Verdict::passed : error <= at_kinks ? Verdict::kink : Verdict::failed;
}

// value: "" for none.
std::string line_of(const std::string& name, const std::string& value, double error, double most, Verdict verdict) {
  std::string line = fmt::format("  {:<44} {:>14} {:>10.2e}", name, value, error);
  if (verdict != Verdict::passed)
    line += fmt::format("   {} {:.0e}", verdict == Verdict::failed ? "FAIL: tolerance" : "beyond", most);
  return line;
}

struct JudgedGradient {
  std::string name;
  double error = 0, most = 0;
  Verdict verdict = Verdict::passed;
};

// Worst first: what failed, and among those the largest errors.
std::vector<JudgedGradient> judge_each(const std::vector<GradientDifference>& gradients, double global_norm,
                                       const Tolerances& tolerances) {
  std::vector<JudgedGradient> judged;
  for (const GradientDifference& d : gradients) {
    const double error = relative_error(d, global_norm), most = largest_error(d, global_norm, tolerances);
    judged.push_back({d.name, error, most, verdict_of(error, most, tolerances.kink)});
  }
  std::stable_sort(judged.begin(), judged.end(), [](const JudgedGradient& a, const JudgedGradient& b) {
    return std::pair(a.verdict, a.error) > std::pair(b.verdict, b.error);
  });
  return judged;
}

void judge_gradients(const std::vector<GradientDifference>& gradients, double global_norm, const Tolerances& tolerances,
                     Judgement& judgement) {
  size_t printed = 0;
  int64_t beyond = 0, noise_only = 0;
  double largest = 0;
  for (const JudgedGradient& g : judge_each(gradients, global_norm, tolerances)) {
    const bool is_beyond = !(g.error <= tolerances.gradient), is_noise = is_beyond && g.verdict == Verdict::passed;
    beyond += is_beyond;
    noise_only += is_noise;
    largest = std::max(largest, g.error);
    judgement.verdict = std::max(judgement.verdict, g.verdict);
    if (printed++ >= (g.verdict == Verdict::passed ? kPrintedAlways : kPrintedFailures)) continue;
    judgement.lines.push_back(line_of("grad " + g.name, "", g.error, g.most, g.verdict) +
                              (is_noise ? fmt::format("   rounding noise explains {:.0e}", g.most) : ""));
  }
  judgement.lines.push_back(fmt::format(
      "  {} gradients compared, {} beyond {:.0e}{}, largest {:.2e}", gradients.size(), beyond, tolerances.gradient,
      noise_only > 0 ? fmt::format(" ({} of them within rounding noise)", noise_only) : "", largest));
}

std::string describe(const RoutingDifference& d) {
  std::string text = counted(d.tokens, "token") + " routed differently";
  if (d.drops > 0) text += fmt::format(", {} dropped by one alone", counted(d.drops, "row"));
  return text;
}

}  // namespace

Tolerances tolerances(const RunSpec& run, const ModelSpec& model) {
  const VerifySpec& v = run.verify;
  if (run.train.dtype == DType::f32)
    return {v.tolerance, v.tolerance, v.tolerance, has_kinks(model) ? kKinkError : 0, true};
  return {v.loss_tolerance_bf16, kSumsOverLoss * v.loss_tolerance_bf16, v.grad_tolerance_bf16, 0, false};
}

double relative_error(const GradientDifference& gradient, double global_norm) {
  const double error = gradient.difference / scale_of(gradient, global_norm);
  return std::isnan(error) ? HUGE_VAL : error;
}

double largest_error(const GradientDifference& gradient, double global_norm, const Tolerances& tolerances) {
  const double noise = kNoiseFactor * gradient.noise / scale_of(gradient, global_norm);
  return std::isfinite(noise) ? std::max(tolerances.gradient, noise) : tolerances.gradient;
}

bool needs_noise(const std::vector<GradientDifference>& gradients, double global_norm, const Tolerances& tolerances) {
  return tolerances.exact && std::any_of(gradients.begin(), gradients.end(), [&](const GradientDifference& d) {
           return !(relative_error(d, global_norm) <= tolerances.gradient);
         });
}

Judgement judge_step(const StepStats& expected, const StepStats& got, const std::vector<GradientDifference>& gradients,
                     const Tolerances& tolerances) {
  Judgement judgement;
  const auto compare = [&](const char* name, double value, double reference, double most, double at_kinks) {
    const double error = relative(value, reference);
    const Verdict verdict = verdict_of(error, most, at_kinks);
    judgement.lines.push_back(line_of(name, fmt::format("{:.8g}", value), error, most, verdict));
    judgement.verdict = std::max(judgement.verdict, verdict);
  };
  compare("loss", got.loss, expected.loss, tolerances.loss, 0);
  compare("aux_loss", got.aux_loss, expected.aux_loss, tolerances.sums, 0);
  compare("z_loss", got.z_loss, expected.z_loss, tolerances.sums, 0);
  compare("grad_norm", got.grad_norm, expected.grad_norm, tolerances.sums, tolerances.kink);
  if (expected.largest_logit() > 0) {
    double difference = 0;
    for (size_t l = 0; l < expected.largest_logits.size(); ++l)
      for (size_t h = 0; h < expected.largest_logits[l].size(); ++h)
        difference = std::max(difference, std::abs(expected.largest_logits[l][h] - got.largest_logits[l][h]));
    compare("largest logits", expected.largest_logit() + difference, expected.largest_logit(), tolerances.sums, 0);
  }
  const bool same_load = expected.load == got.load && expected.dropped_rows == got.dropped_rows;
  if (tolerances.exact && !same_load) judgement.verdict = Verdict::failed;
  const char* load = same_load ? "equal" : tolerances.exact ? "FAIL: differ" : "differ (printed only)";
  judgement.lines.push_back(
      fmt::format("  {:<44} {}, {} dropped", "expert load and dropped rows", load, got.dropped_rows));
  judge_gradients(gradients, expected.grad_norm, tolerances, judgement);
  return judgement;
}

Judgement judge_routing(const RoutingDifference& difference, const RoutingDifference& replayed,
                        const Tolerances& tolerances) {
  Judgement judgement;
  std::string line = "  " + describe(difference);
  if (differs(difference))
    line += fmt::format(
        ", widest gap of the first {:.1e}; redone with the reference's routing, from equal inputs {}, widest gap "
        "{:.1e}",
        difference.widest_gap, describe(replayed), replayed.widest_gap);
  judgement.lines.push_back(line);
  const double widest = std::max(difference.widest_gap, replayed.widest_gap);
  if (!tolerances.exact || widest < kNearTie) return judgement;
  judgement.verdict = Verdict::failed;
  judgement.lines.push_back(
      fmt::format("  FAIL: a gap of {:.1e} is more than rounding can explain ({:.0e})", widest, kNearTie));
  return judgement;
}

}  // namespace mw
