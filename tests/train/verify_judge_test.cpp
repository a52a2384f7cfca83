// What `verify` accepts and what it reports, from numbers alone.
#include "train/verify/verify_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/small_run.h"

namespace mw::test {
namespace {

constexpr double kGlobalNorm = 2;
const Tolerances kExact{1e-5, 1e-5, 1e-5, 0, true};

StepStats some_stats() {
  StepStats stats;
  stats.loss = 5;
  stats.aux_loss = 1;
  stats.z_loss = 8;
  stats.grad_norm = kGlobalNorm;
  stats.load = {{3, 5}};
  return stats;
}

Judgement judge(const GradientDifference& gradient, const Tolerances& tolerances = kExact) {
  return judge_step(some_stats(), some_stats(), {gradient}, tolerances);
}

bool has(const Judgement& judgement, const std::string& text) {
  return std::any_of(judgement.lines.begin(), judgement.lines.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

TEST(JudgeStep, ComparesAGradientWithItsOwnNorm) {
  EXPECT_EQ(judge({"w", 0.9e-5, 1, 0}).verdict, Verdict::passed);
  EXPECT_EQ(judge({"w", 1.1e-5, 1, 0}).verdict, Verdict::failed);
  EXPECT_EQ(judge({"w", 0.9e-10, 1e-5, 0}).verdict, Verdict::passed);
  EXPECT_EQ(judge({"w", 1.1e-10, 1e-5, 0}).verdict, Verdict::failed);
  // Below 1e-6 of the global norm with that.
  EXPECT_EQ(judge({"w", 0.9e-5 * 1e-6 * kGlobalNorm, 0, 0}).verdict, Verdict::passed);
  EXPECT_EQ(judge({"w", 1.1e-5 * 1e-6 * kGlobalNorm, 0, 0}).verdict, Verdict::failed);
}

// As measured with documents of one token: the gradient is noise, 2e-8 of the global norm, and so is the difference.
TEST(JudgeStep, ExcusesRoundingNoiseOnly) {
  const double noise = 3e-8 * kGlobalNorm;
  const Judgement judgement = judge({"wq", noise, 2e-8 * kGlobalNorm, noise});
  EXPECT_EQ(judgement.verdict, Verdict::passed);
  EXPECT_TRUE(has(judgement, "rounding noise explains"));
  EXPECT_TRUE(has(judgement, "1 beyond 1e-05 (1 of them within rounding noise)"));
  EXPECT_EQ(judge({"wq", noise, 2e-8 * kGlobalNorm, 0}).verdict, Verdict::failed) << "noise that was not measured";
  EXPECT_EQ(judge({"wq", 10 * noise, 2e-8 * kGlobalNorm, noise}).verdict, Verdict::failed);
}

// The same difference in a real gradient that is as small, but whose terms do not cancel.
TEST(JudgeStep, FindsARealErrorInASmallGradient) {
  const double norm = 1e-4 * kGlobalNorm, noise = 1e-6 * norm;
  for (const double error : {1e-2, 1e-3, 1e-4}) {
    const Judgement judgement = judge({"q_norm", error * norm, norm, noise});
    EXPECT_EQ(judgement.verdict, Verdict::failed) << error;
    EXPECT_TRUE(has(judgement, "grad q_norm")) << error;
    EXPECT_TRUE(has(judgement, "FAIL: tolerance 1e-05")) << error;
  }
  EXPECT_EQ(judge({"q_norm", norm, 0, noise}).verdict, Verdict::failed) << "a gradient that only the layout has";
}

TEST(JudgeStep, PrintsFailuresBeforeLargerErrorsThatNoiseExplains) {
  std::vector<GradientDifference> gradients(100, {"noise", 1e-8, 1e-8, 1e-8});
  gradients.push_back({"wrong", 1e-4, 1, 1e-7});
  const Judgement judgement = judge_step(some_stats(), some_stats(), gradients, kExact);
  EXPECT_EQ(judgement.verdict, Verdict::failed);
  EXPECT_TRUE(has(judgement, "grad wrong"));
  EXPECT_TRUE(has(judgement, "101 beyond 1e-05 (100 of them within rounding noise)"));
}

TEST(JudgeStep, ExcusesNothingThatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double noise : {0.0, 1.0, HUGE_VAL, nan}) {
    EXPECT_EQ(judge({"w", HUGE_VAL, 1, noise}).verdict, Verdict::failed) << noise;
    EXPECT_EQ(judge({"w", nan, 1, noise}).verdict, Verdict::failed) << noise;
  }
  EXPECT_EQ(judge({"w", 1e-3, 1, HUGE_VAL}).verdict, Verdict::failed);
  EXPECT_EQ(judge({"w", 1e-3, 1, nan}).verdict, Verdict::failed);
  for (double StepStats::*value : {&StepStats::loss, &StepStats::aux_loss, &StepStats::z_loss, &StepStats::grad_norm}) {
    StepStats got = some_stats();
    got.*value = nan;
    EXPECT_EQ(judge_step(some_stats(), got, {}, kExact).verdict, Verdict::failed);
  }
}

TEST(JudgeStep, ComparesLossesNormAndLoads) {
  for (double StepStats::*value : {&StepStats::loss, &StepStats::aux_loss, &StepStats::z_loss, &StepStats::grad_norm})
    for (const double error : {0.9e-5, 1.1e-5}) {
      StepStats got = some_stats();
      got.*value *= 1 + error;
      EXPECT_EQ(judge_step(some_stats(), got, {}, kExact).verdict, error < 1e-5 ? Verdict::passed : Verdict::failed);
    }
  StepStats moved = some_stats(), dropped = some_stats();
  moved.load = {{4, 4}};
  dropped.dropped_rows = 1;
  const Tolerances rounded{2e-3, 2e-2, 0.3, 0, false};
  for (const StepStats& got : {moved, dropped}) {
    EXPECT_EQ(judge_step(some_stats(), got, {}, kExact).verdict, Verdict::failed);
    EXPECT_EQ(judge_step(some_stats(), got, {}, rounded).verdict, Verdict::passed);
  }
}

// Near a kink of relu or clip_qkv gradients may jump by 1e-2; the loss may not.
TEST(JudgeStep, ReportsWhatAKinkMayExplain) {
  RunSpec run = small_run();
  run.native.activation = Activation::relu;
  const Tolerances kinks = tolerances(run, build_native_model(run.native));
  EXPECT_EQ(judge({"w", 1e-3, 1, 0}, kinks).verdict, Verdict::kink);
  EXPECT_EQ(judge({"w", 1.1e-2, 1, 0}, kinks).verdict, Verdict::failed);
  EXPECT_EQ(judge({"w", 1e-3, 1, 1e-3}, kinks).verdict, Verdict::passed);
  StepStats got = some_stats();
  got.grad_norm *= 1 + 1e-3;
  EXPECT_EQ(judge_step(some_stats(), got, {}, kinks).verdict, Verdict::kink);
  got.loss *= 1 + 1e-3;
  EXPECT_EQ(judge_step(some_stats(), got, {}, kinks).verdict, Verdict::failed);
  run.native.activation = Activation::swiglu;
  EXPECT_EQ(judge({"w", 1e-3, 1, 0}, tolerances(run, build_native_model(run.native))).verdict, Verdict::failed);
}

TEST(JudgeStep, AsksForNoiseWhereAGradientIsBeyondTheTolerance) {
  const std::vector<GradientDifference> fine = {{"a", 1e-6, 1, 0}}, off = {{"a", 1e-6, 1, 0}, {"b", 1e-4, 1, 0}};
  EXPECT_FALSE(needs_noise(fine, kGlobalNorm, kExact));
  EXPECT_TRUE(needs_noise(off, kGlobalNorm, kExact));
  EXPECT_FALSE(needs_noise(off, kGlobalNorm, {2e-3, 2e-2, 0.3, 0, false}));
}

TEST(JudgeRouting, AcceptsNearTiesOnly) {
  EXPECT_EQ(judge_routing({}, {}, kExact).verdict, Verdict::passed);
  EXPECT_EQ(judge_routing({1, 0, 1e-6}, {}, kExact).verdict, Verdict::passed);
  EXPECT_EQ(judge_routing({1, 0, 1e-4}, {}, kExact).verdict, Verdict::failed);
  EXPECT_EQ(judge_routing({1, 0, 1e-6}, {1, 0, 1e-4}, kExact).verdict, Verdict::failed);
  EXPECT_EQ(judge_routing({1, 0, 1e-4}, {}, {2e-3, 2e-2, 0.3, 0, false}).verdict, Verdict::passed);
}

}  // namespace
}  // namespace mw::test
