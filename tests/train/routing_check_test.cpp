#include "train/routing_check.h"

#include <gtest/gtest.h>

namespace mw {
namespace {

// Two sequences of three tokens, top-1 of two experts, of which each keeps two choices a sequence.
constexpr int64_t kTokens = 6;
constexpr CapacityRule kTwo{2, 3};
const std::vector<int32_t> kIds = {0, 0, 0, 1, 1, 1};
const std::vector<float> kGaps = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}, kWeights = {0.5f, 0.75f, 0.25f, 1, 1, 1};

RoutingDifference compare(const std::vector<int32_t>& ids, const std::vector<float>& weights,
                          CapacityRule rule = kTwo) {
  return compare_routing({kIds, kGaps, kWeights}, {ids, kGaps, weights}, kTokens, rule);
}

TEST(RoutingCheck, EqualRunsDoNotDiffer) {
  const RoutingDifference d = compare(kIds, kWeights);
  EXPECT_EQ(d.tokens, 0);
  EXPECT_EQ(d.drops, 0);
  EXPECT_EQ(d.widest_gap, 0);
}

TEST(RoutingCheck, TokensCountWithTheWidestGapOfTheExpectedRun) {
  const RoutingDifference d = compare({0, 1, 0, 1, 0, 1}, kWeights);
  EXPECT_EQ(d.tokens, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(d.widest_gap), 0.5f);
}

TEST(RoutingCheck, TheOrderOfATokensExpertsIsNoDifference) {
  const std::vector<int32_t> expected = {0, 1, 2, 3}, got = {1, 0, 3, 2};
  const std::vector<float> gaps = {1, 1};
  const RoutingDifference d = compare_routing({expected, gaps, {}}, {got, gaps, {}}, 2, {});
  EXPECT_EQ(d.tokens, 0);
}

TEST(RoutingCheck, DropsAreMeasuredFromTheCapacity) {
  // Token 2 takes the place of token 0, whose weights lie 0.25 apart. Equal weights go to the lower token: no change.
  const RoutingDifference d = compare(kIds, {0.5f, 0.75f, 0.625f, 1, 1, 1});
  EXPECT_EQ(d.tokens, 0);
  EXPECT_EQ(d.drops, 2);
  EXPECT_EQ(d.widest_gap, 0.25);
}

TEST(RoutingCheck, ChangedWeightsThatDropTheSameAreNoDifference) {
  EXPECT_EQ(compare(kIds, {0.9f, 0.6f, 0.1f, 1, 1, 0.5f}).drops, 0);
}

TEST(RoutingCheck, SequencesWithOtherChoicesAreNotAskedForDrops) {
  // In the first sequence token 1 chose another expert, so that token 2 is kept; in the second a row differs.
  const RoutingDifference d = compare({0, 1, 0, 1, 1, 1}, {0.5f, 0.75f, 0.25f, 1, 0.5f, 1});
  EXPECT_EQ(d.tokens, 1);
  EXPECT_EQ(d.drops, 2);  // tokens 4 and 5
}

TEST(RoutingCheck, WithoutACapacityNothingIsDropped) {
  EXPECT_EQ(compare(kIds, {0.5f, 0.75f, 0.625f, 1, 1, 1}, {0, 3}).drops, 0);
  EXPECT_EQ(compare_routing({kIds, kGaps, {}}, {kIds, kGaps, {}}, kTokens, kTwo).drops, 0);
  EXPECT_EQ(compare_routing({}, {}, 0, kTwo).tokens, 0);
}

// What a flip within rounding does to later layers is no rounding any more.
TEST(RoutingCheck, OnlyTheFirstLayerOfAMicroBatchThatDiffersIsJudged) {
  const RoutingDifference none, tiny{1, 0, 1e-8}, dropped{0, 2, 1e-7}, wide{3, 1, 0.5};
  const RoutingDifference sum = sum_up({{none, tiny, wide}, {none, none, none}, {dropped, wide, tiny}});
  EXPECT_EQ(sum.tokens, 8);
  EXPECT_EQ(sum.drops, 4);
  EXPECT_EQ(sum.widest_gap, 1e-7);
  EXPECT_EQ(sum_up({{tiny, none}, {wide, none}}).widest_gap, 0.5);
}

}  // namespace
}  // namespace mw
