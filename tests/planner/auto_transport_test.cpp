// What moe.transport = "auto" means for a run on given ranks.
#include "planner/auto_transport.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mw::test {
namespace {

// A layer of Qwen3-30B, four times, with experts on all of 32 ranks.
RunSpec run_on_32_ranks() {
  RunSpec run;
  run.native.width = 2048;
  run.native.layers = 4;
  run.native.heads = 32;
  run.native.head_dim = 64;
  run.native.experts = 128;
  run.native.top_k = 8;
  run.native.expert_width = 768;
  run.train.seq_len = 4096;
  run.train.global_batch = 64;
  run.train.micro_batches = 2;
  run.mesh.ep = 32;
  run.plan.platform = MOEWRIGHT_SOURCE_DIR "/profiles/frontier.json";
  return run;
}

TEST(AutoTransport, IsBypassWhereLinksBetweenNodesAreSlow) {
  const TransportChoice choice = choose_auto_transport(run_on_32_ranks(), 32, {8, {}});
  EXPECT_EQ(choice.name, "bypass") << choice.why_none;
  EXPECT_GT(choice.seconds, 0);
  EXPECT_LE(choice.seconds, 0.98 * choice.flat_seconds);
  EXPECT_TRUE(describe(choice, "frontier.json").starts_with("moe.transport = \"auto\": bypass, by frontier.json: "));
}

// A token that has one expert goes to one rank: nothing can be merged, and the way by the node costs copies.
TEST(AutoTransport, IsFlatWhereTokensHaveOneExpert) {
  RunSpec run = run_on_32_ranks();
  run.native.top_k = 1;
  const TransportChoice choice = choose_auto_transport(run, 32, {8, {}});
  EXPECT_NE(choice.name, "bypass");
  EXPECT_GT(choice.flat_seconds, 0);
}

TEST(AutoTransport, StaysWithTheCheckpoints) {
  const RunSpec slow_links = run_on_32_ranks();
  const TransportChoice kept = choose_auto_transport(slow_links, 32, {8, {}}, "flat");
  EXPECT_EQ(kept.name, "flat");
  EXPECT_EQ(kept.seconds, kept.flat_seconds);
  EXPECT_EQ(choose_auto_transport(slow_links, 32, {8, {}}, "padded").name, "bypass");  // not one that is weighed
}

// All tokens of a layer go to the experts of four ranks of a node: gathered weights are as fast as before.
TEST(AutoTransport, ChoosesAgainByMeasuredLoads) {
  const RunSpec run = run_on_32_ranks();
  const auto again = [&](const std::string& now, const std::vector<double>& rows) {
    return choose_transport_again(run, 32, {8, {}}, now, std::vector<std::vector<double>>(4, rows));
  };
  const std::vector<double> even(128, 1000);
  std::vector<double> skewed(128, 0);
  std::fill(skewed.begin(), skewed.begin() + 16, 8000);
  const TransportChoice same = again("bypass", even), other = again("bypass", skewed);
  EXPECT_EQ(same.name, "bypass");
  EXPECT_EQ(other.name, "gather_weights");
  EXPECT_LE(other.seconds, 0.9 * again("bypass", skewed).flat_seconds);
  EXPECT_EQ(again("flat", even).name, "bypass");
  EXPECT_EQ(again("gather_tokens", even).name, "gather_tokens");  // slices of experts stay where they are
}

TEST(AutoTransport, ChoosesByTheLoadsOfTheFirstBatch) {
  const RunSpec run = run_on_32_ranks();
  std::vector<double> skewed(128, 0);
  std::fill(skewed.begin(), skewed.begin() + 16, 8000);
  const auto name = [&](const std::vector<double>& rows) {
    return choose_auto_transport(run, 32, {8, {}}, "", MeasuredLoads(4, rows)).name;
  };
  EXPECT_EQ(name(std::vector<double>(128, 1000)), "bypass");
  EXPECT_EQ(name(skewed), "gather_weights");
}

TEST(AutoTransport, IsTheRunsWhereThereIsNothingToChoose) {
  const auto name = [](const RunSpec& run, const NodeMap& nodes) {
    const TransportChoice choice = choose_auto_transport(run, 32, nodes);
    EXPECT_EQ(choice.seconds, 0);
    EXPECT_EQ(describe(choice, run.plan.platform), "");
    return choice.name;
  };
  RunSpec run = run_on_32_ranks();
  EXPECT_EQ(name(run, {12, {}}), "auto");  // nodes of 12, 12 and 8 ranks
  std::vector<int> alternating;
  for (int rank = 0; rank < 32; ++rank) alternating.push_back(rank % 2);
  EXPECT_EQ(name(run, {0, alternating}), "auto");
  run.plan.platform.clear();
  EXPECT_EQ(name(run, {8, {}}), "auto");
  run = run_on_32_ranks();
  run.moe.transport = "halo";
  EXPECT_EQ(name(run, {8, {}}), "halo");
}

// On one node rows that several experts of a rank need travel once.
TEST(AutoTransport, IsBypassOnOneNodeOfFewRanks) {
  RunSpec run = run_on_32_ranks();
  run.mesh.ep = 2;
  run.plan.platform = MOEWRIGHT_SOURCE_DIR "/profiles/h200x8.json";
  const TransportChoice choice = choose_auto_transport(run, 2, {});
  EXPECT_EQ(choice.name, "bypass") << choice.why_none;
}

TEST(AutoTransport, TellsWhyNothingIsPredicted) {
  RunSpec run = run_on_32_ranks();
  run.plan.platform = "absent.json";
  const TransportChoice choice = choose_auto_transport(run, 32, {8, {}});
  EXPECT_EQ(choice.name, "auto");
  EXPECT_TRUE(describe(choice, "absent.json").starts_with("moe.transport = \"auto\": flat, because absent.json"))
      << choice.why_none;
}

}  // namespace
}  // namespace mw::test
