// The warning about a collapsed router: when it comes, what it names, and that healthy loads do not cause it.
#include "train/loop/load_watch.h"

#include "train/helpers.h"

namespace mw::test {
namespace {

using Loads = std::vector<std::vector<double>>;
constexpr int64_t kPatience = LoadWatch::kPatience;

// Dense layer 0, then two MoE layers of 8 experts, top-2.
RunSpec watched_run() {
  RunSpec run = small_run();
  run.native.experts = 8;
  run.moe.aux_loss_coef = 0;
  return run;
}

std::vector<double> even() { return std::vector<double>(8, 512); }
std::vector<double> collapsed() { return {2, 2, 2, 1, 2042, 2044, 2, 1}; }

// The warnings of steps first .. last with the same loads.
std::vector<std::string> warnings(LoadWatch& watch, const Loads& load, int64_t first, int64_t last) {
  std::vector<std::string> out;
  for (int64_t step = first; step <= last; ++step)
    if (std::string text = watch.observe(step, load); !text.empty()) out.push_back(text);
  return out;
}

LoadWatch watch_of(const RunSpec& run) { return {load_model_spec(run), run}; }

TEST(LoadWatch, NamesLayerExpertsAndTheKeyToSet) {
  LoadWatch watch = watch_of(watched_run());
  EXPECT_TRUE(warnings(watch, {even(), collapsed()}, 1, kPatience - 1).empty());
  const std::vector<std::string> told = warnings(watch, {even(), collapsed()}, kPatience, kPatience);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(contains(told[0], "step 10: layer 2: 2 of 8 experts")) << told[0];
  EXPECT_TRUE(contains(told[0], "set moe.aux_loss_coef=0.05")) << told[0];
}

TEST(LoadWatch, RepeatsRarely) {
  LoadWatch watch = watch_of(watched_run());
  EXPECT_EQ(warnings(watch, {even(), collapsed()}, 1, 1000).size(), 3u);  // after 10, 100 and 1000 steps
}

TEST(LoadWatch, RecoveredLayersStartAnew) {
  LoadWatch watch = watch_of(watched_run());
  for (int64_t step = 1; step < 100; step += kPatience - 1) {
    EXPECT_TRUE(warnings(watch, {collapsed(), even()}, step, step + kPatience - 2).empty());
    EXPECT_EQ(watch.observe(step + kPatience - 1, {even(), even()}), "");
  }
}

TEST(LoadWatch, NamesTheRemedyThatFitsTheSettings) {
  RunSpec run = watched_run();
  run.moe.aux_loss_coef = 0.001;
  LoadWatch weak = watch_of(run);
  EXPECT_TRUE(
      contains(warnings(weak, {collapsed(), collapsed()}, 1, kPatience).at(0), "raise moe.aux_loss_coef (now 0.001)"));
  run.native.score = ScoreFunction::sigmoid;
  run.native.selection_bias = true;
  LoadWatch biased = watch_of(run);
  EXPECT_TRUE(contains(warnings(biased, {collapsed(), even()}, 1, kPatience).at(0), "raise moe.bias_rate (now 0.001)"));
}

TEST(LoadWatch, UnevenButHealthyLoadsAreQuiet) {
  LoadWatch watch = watch_of(watched_run());
  const Loads uneven = {{900, 800, 700, 600, 500, 300, 196, 100}, {1500, 900, 600, 400, 300, 200, 146, 50}};
  EXPECT_TRUE(warnings(watch, uneven, 1, 200).empty());
  EXPECT_TRUE(warnings(watch, {std::vector<double>(8, 0), even()}, 201, 400).empty());
}

TEST(LoadWatch, ModelsWhoseTokensTakeEveryExpertAreQuiet) {
  RunSpec run = watched_run();
  run.native.top_k = 8;
  LoadWatch watch = watch_of(run);
  EXPECT_TRUE(warnings(watch, {even(), even()}, 1, 200).empty());
}

TEST(LoadBalance, IsOnByDefaultWhereNoSelectionBiasBalances) {
  RunSpec run;
  EXPECT_EQ(aux_loss_coef(run, load_model_spec(run)), kNativeAuxLossCoef);
  run.native.score = ScoreFunction::sigmoid;
  run.native.selection_bias = true;
  EXPECT_EQ(aux_loss_coef(run, load_model_spec(run)), 0);
  run.moe.aux_loss_coef = 0.5;
  EXPECT_EQ(aux_loss_coef(run, load_model_spec(run)), 0.5);
}

}  // namespace
}  // namespace mw::test
