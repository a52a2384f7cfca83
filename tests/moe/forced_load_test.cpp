#include "moe/forced_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "layout/shares.h"

namespace mw::test {
namespace {

constexpr int64_t kExperts = 64, kTopK = 6, kTokens = 3000;
// A golden ratio sequence of so many tokens misses a rate by less.
constexpr double kFew = 6;

RunSpec run_of(ForcedLoad load) {
  RunSpec run;
  run.moe.forced_load = load;
  run.train.seed = 11;
  return run;
}

MoeSpec moe_of(int64_t experts, int64_t top_k) {
  MoeSpec moe;
  moe.experts = experts;
  moe.top_k = top_k;
  return moe;
}

// Shares of tokens by expert.
std::vector<double> shares(ForcedLoad load, int64_t step = 1) {
  std::vector<double> shares;
  for (const uint64_t rate : forced_rates(load, kExperts, kTopK, 11, step))
    shares.push_back(static_cast<double>(rate) / static_cast<double>(kRateOne));
  return shares;
}

std::vector<int> experts_with(const std::vector<double>& shares, double share) {
  std::vector<int> experts;
  for (size_t e = 0; e < shares.size(); ++e)
    if (std::abs(shares[e] - share) < 1e-6) experts.push_back(static_cast<int>(e));
  return experts;
}

constexpr double kMean = static_cast<double>(kTopK) / kExperts;

// Four hot experts with four times the mean; the other 60 share the rest.
std::vector<int> hot_experts(ForcedLoad load, int64_t step = 1) {
  const std::vector<double> s = shares(load, step);
  const std::vector<int> hot = experts_with(s, 4 * kMean);
  EXPECT_EQ(hot.size(), 4U);
  EXPECT_EQ(experts_with(s, (kTopK - 16 * kMean) / 60).size(), 60U);
  return hot;
}

TEST(ForcedLoad, SharesOfExpertsAreAsNamed) {
  EXPECT_EQ(experts_with(shares(ForcedLoad::balanced), kMean).size(), 64U);
  hot_experts(ForcedLoad::hot_experts);
  const std::vector<int> rank = hot_experts(ForcedLoad::hot_rank), spread = hot_experts(ForcedLoad::hot_spread);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(rank[i], rank[i - 1] + 1);
    EXPECT_EQ(spread[i], spread[i - 1] + 16);
  }
  EXPECT_EQ(rank.front() % 4, 0);
  const std::vector<double> idle = shares(ForcedLoad::idle_experts), one = shares(ForcedLoad::one_expert),
                            skip = shares(ForcedLoad::skip_expert);
  for (int e = 0; e < kExperts; ++e) {
    const auto i = static_cast<size_t>(e);
    EXPECT_NEAR(idle[i], e >= 48 || e % 4 == 3 ? 0 : kTopK / 36.0, 1e-6);
    EXPECT_EQ(one[i], e < kTopK ? 1 : 0);
    EXPECT_NEAR(skip[i], e == 0 ? 0 : kTopK / 63.0, 1e-6);
  }
}

// Blocks of experts on 16 ranks: the hot part is one rank, or a part of every fourth rank.
TEST(ForcedLoad, SharesOfRanksAreAsNamed) {
  const auto of_ranks = [](ForcedLoad load) {
    const std::vector<double> s = shares(load);
    std::vector<double> ranks;
    for (size_t g = 0; g < 16; ++g)
      ranks.push_back(std::accumulate(s.begin() + static_cast<ptrdiff_t>(4 * g),
                                      s.begin() + static_cast<ptrdiff_t>(4 * g + 4), 0.0) /
                      (4 * kMean));
    return ranks;
  };
  const std::vector<double> hot = of_ranks(ForcedLoad::hot_rank), spread = of_ranks(ForcedLoad::hot_spread),
                            idle = of_ranks(ForcedLoad::idle_experts);
  EXPECT_NEAR(*std::max_element(hot.begin(), hot.end()), 4, 1e-6);
  EXPECT_NEAR(*std::min_element(hot.begin(), hot.end()), 0.8, 1e-6);
  EXPECT_NEAR(*std::max_element(spread.begin(), spread.end()), 1.6, 1e-6);  // one of four experts is hot
  for (size_t g = 0; g < 16; ++g) EXPECT_NEAR(idle[g], g < 12 ? 4 / 3.0 : 0, 1e-6);
}

TEST(ForcedLoad, HotSetsMoveAndBurst) {
  std::set<std::vector<int>> parts;
  for (int64_t step = 1; step <= 160; ++step) {
    parts.insert(hot_experts(ForcedLoad::moving, step));
    EXPECT_EQ(std::ssize(parts), (step + 9) / 10);
    const bool bursts = (step >= 46 && step <= 50) || (step >= 96 && step <= 100) || (step >= 146 && step <= 150);
    EXPECT_EQ(shares(ForcedLoad::burst, step), shares(bursts ? ForcedLoad::hot_rank : ForcedLoad::balanced));
  }
}

TEST(ForcedLoad, RatesAddUpAndHeatIsAtMostEveryToken) {
  for (const EnumWord<ForcedLoad>& load : kEnumWords<ForcedLoad>)
    for (const auto& [experts, top_k] : {std::pair{64, 6}, {8, 2}, {5, 2}, {17, 4}, {256, 8}, {100, 3}}) {
      const std::vector<uint64_t> rates = forced_rates(load.value, experts, top_k, 3, 46);
      EXPECT_EQ(std::accumulate(rates.begin(), rates.end(), uint64_t{0}), static_cast<uint64_t>(top_k) * kRateOne);
      EXPECT_LE(*std::max_element(rates.begin(), rates.end()), kRateOne);
    }
}

TEST(ForcedLoad, TokensChooseDistinctExpertsAtTheirRates) {
  for (const EnumWord<ForcedLoad>& load : kEnumWords<ForcedLoad>) {
    if (load.value == ForcedLoad::none) continue;
    const RunSpec run = run_of(load.value);
    const std::vector<int32_t> ids = forced_choices(run, moe_of(kExperts, kTopK), {46, 2, 500, kTokens});
    const std::vector<double> expected = shares(load.value, 46);
    // All tokens, and those of one of three ranks that share them.
    for (const int64_t tokens : {kTokens, kTokens / 3}) {
      std::vector<double> counts(kExperts);
      for (int64_t t = 0; t < tokens; ++t) {
        const std::set<int32_t> chosen(ids.begin() + t * kTopK, ids.begin() + (t + 1) * kTopK);
        ASSERT_EQ(std::ssize(chosen), kTopK) << load.word;
        for (const int32_t e : chosen) ++counts[static_cast<size_t>(e)];
      }
      for (size_t e = 0; e < counts.size(); ++e)
        EXPECT_NEAR(counts[e], static_cast<double>(tokens) * expected[e], expected[e] == 0 ? 0 : kFew) << load.word;
    }
  }
}

// Pieces of any size make up the whole; steps, layers and seeds differ.
TEST(ForcedLoad, DependsOnTheTokenAlone) {
  RunSpec run = run_of(ForcedLoad::hot_experts);
  const MoeSpec moe = moe_of(kExperts, kTopK);
  const std::vector<int32_t> whole = forced_choices(run, moe, {3, 1, 0, 300});
  std::vector<int32_t> pieces;
  for (const auto& [first, count] : {std::pair{0, 7}, {7, 1}, {8, 92}, {100, 200}}) {
    const std::vector<int32_t> piece = forced_choices(run, moe, {3, 1, first, count});
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_NE(forced_choices(run, moe, {4, 1, 0, 300}), whole);
  EXPECT_NE(forced_choices(run, moe, {3, 2, 0, 300}), whole);
  run.train.seed = 12;
  EXPECT_NE(forced_choices(run, moe, {3, 1, 0, 300}), whole);
}

// Unequal numbers of tokens per source rank: mesh.shares, with a balanced load. Each source sends in proportion.
TEST(ForcedLoad, SourcesSendInProportionToTheirShares) {
  RunSpec run = run_of(ForcedLoad::balanced);
  run.train.global_batch = 12;
  run.train.seq_len = 200;
  run.mesh.shares = "3,2,1";
  for (int64_t rank = 0; rank < 3; ++rank) {
    const LocalBatch batch = make_local_batch(run, 3, rank);
    EXPECT_EQ(batch.sequences, 6 - 2 * rank);
    const std::vector<int32_t> ids =
        forced_choices(run, moe_of(kExperts, kTopK), {1, 0, batch.first * batch.seq_len, batch.tokens()});
    std::vector<double> counts(kExperts);
    for (const int32_t e : ids) ++counts[static_cast<size_t>(e)];
    for (const double count : counts) EXPECT_NEAR(count, static_cast<double>(batch.tokens()) * kMean, kFew);
  }
}

TEST(ForcedLoad, RefusesTooFewExperts) {
  EXPECT_THROW(forced_rates(ForcedLoad::idle_experts, 8, 6, 1, 1), Error);  // five of eight are left
  EXPECT_NO_THROW(forced_rates(ForcedLoad::idle_experts, 8, 5, 1, 1));
  EXPECT_THROW(forced_rates(ForcedLoad::skip_expert, 4, 4, 1, 1), Error);
  EXPECT_NO_THROW(forced_rates(ForcedLoad::one_expert, 4, 4, 1, 1));
}

}  // namespace
}  // namespace mw::test
