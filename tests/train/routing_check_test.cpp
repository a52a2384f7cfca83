#include "train/verify/routing_check.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(RoutingCheck, TokensCountWithTheWidestGapOfEitherRun) {
  const RoutingDifference d = compare({0, 1, 0, 1, 0, 1}, kWeights);
  EXPECT_EQ(d.tokens, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(d.widest_gap), 0.5f);
  // A run that chose from afar where another choice was near; one that knows no gap.
  const std::vector<int32_t> ids = {0, 1, 0, 1, 1, 1};
  for (const float gap : {-0.75f, 0.75f, NAN}) {
    const std::vector<float> gaps = {0, gap, 0, 0, 0, 0};
    const double widest = compare_routing({kIds, kGaps, kWeights}, {ids, gaps, kWeights}, kTokens, kTwo).widest_gap;
    EXPECT_EQ(widest, std::isnan(gap) ? HUGE_VAL : 0.75) << gap;
  }
}

TEST(RoutingCheck, TheOrderOfATokensExpertsIsNoDifference) {
  const std::vector<int32_t> expected = {0, 1, 2, 3}, got = {1, 0, 3, 2};
  const std::vector<float> gaps = {1, 1};
  const RoutingDifference d = compare_routing({expected, gaps, {}}, {got, gaps, {}}, 2, {});
  EXPECT_EQ(d.tokens, 0);
}

TEST(RoutingCheck, DropsAreMeasuredFromTheCapacityInBothRuns) {
  // Token 2 takes the place of token 0: they lie 0.25 apart in one run, 0.125 in the other, or the other way round.
  const std::vector<float> other = {0.5f, 0.75f, 0.625f, 1, 1, 1};
  for (const bool swap : {false, true}) {
    const std::vector<float>&expected = swap ? other : kWeights, &got = swap ? kWeights : other;
    const RoutingDifference d = compare_routing({kIds, kGaps, expected}, {kIds, kGaps, got}, kTokens, kTwo);
    EXPECT_EQ(d.tokens, 0);
    EXPECT_EQ(d.drops, 2);
    EXPECT_EQ(d.widest_gap, 0.25);
  }
  EXPECT_EQ(compare(kIds, {0.5f, 0.75f, NAN, 1, 1, 1}).widest_gap, HUGE_VAL);  // what is no number is kept
  EXPECT_EQ(compare(kIds, {NAN, 0.75f, 0.25f, 1, 1, 1}).drops, 0);
}

// Two sequences of two tokens, top-2 of three experts, of which each keeps one choice a sequence.
TEST(RoutingCheck, DropsOfSeveralExpertsPerToken) {
  const std::vector<int32_t> ids = {0, 1, 1, 0, 2, 0, 1, 2};
  const std::vector<float> gaps(4, 1), expected = {0.5f, 0.5f, 0.25f, 0.75f, 1, 1, 1, 0.5f};
  std::vector<float> got = expected;
  got[0] = 0.875f;  // token 0 now keeps expert 0, and token 1 loses it
  RoutingDifference d = compare_routing({ids, gaps, expected}, {ids, gaps, got}, 4, {1, 2});
  EXPECT_EQ(d.drops, 2);
  EXPECT_EQ(d.widest_gap, 0.25);
  got[7] = 1.5f;  // and token 3 expert 2
  d = compare_routing({ids, gaps, expected}, {ids, gaps, got}, 4, {1, 2});
  EXPECT_EQ(d.drops, 4);
  EXPECT_EQ(d.widest_gap, 0.5);
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

}  // namespace
}  // namespace mw
