// The time of an exchange, by hand: bytes of each leg over the rates of its links.
#include "planner/exchange_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "layout/exchange_volume.h"

namespace mw::test {
namespace {

constexpr double kNear = 1e9, kFar = 1e8;  // bytes per second
constexpr double kRows = 1000, kRowBytes = 64;

PlatformProfile two_nodes_of_four() {
  PlatformProfile profile;
  profile.ranks_per_node = 4;
  profile.levels = {{"node", 4, {0, kNear}, {0, kNear}, {0, kNear}}, {"network", 8, {0, kFar}, {0, kFar}, {0, kFar}}};
  profile.elementwise_bytes_per_s = 1e10;
  return profile;
}

MoeSpec moe() {
  MoeSpec m;
  m.experts = 32;
  m.top_k = 4;
  return m;
}

double seconds(const PlatformProfile& profile, TransportKind kind, ExchangePhase phase, double load = 1,
               double link_load = 1) {
  const MoeSpec spec = moe();
  const Transfers transfers(profile, 8);
  return link_seconds({.moe = spec,
                       .traits = traits_of(kind),
                       .group = {8, 1},
                       .near = 4,
                       .tokens = kRows,
                       .row_bytes = kRowBytes,
                       .load = load,
                       .link_load = link_load},
                      phase, transfers);
}

TEST(ExchangeTime, OfFlatIsThatOfItsFarRows) {
  const double far = 4 * 0.5 * kRows;  // half of the choices are on the other node
  const PlatformProfile profile = two_nodes_of_four();
  EXPECT_NEAR(seconds(profile, TransportKind::flat, ExchangePhase::combine), far * kRowBytes / kFar, 1e-12);
  EXPECT_NEAR(seconds(profile, TransportKind::flat, ExchangePhase::dispatch), far * (kRowBytes + 4) / kFar, 1e-12);
}

TEST(ExchangeTime, OfBypassIsTheSumOfItsLegs) {
  const MoeSpec spec = moe();
  const LinkRows rows = rows_per_token(spec, traits_of(TransportKind::bypass), 2, 4);
  const PlatformProfile profile = two_nodes_of_four();
  const double legs = kRows * (rows.far / kFar + rows.near / kNear);
  EXPECT_NEAR(seconds(profile, TransportKind::bypass, ExchangePhase::combine), legs * kRowBytes, 1e-12);
  EXPECT_NEAR(seconds(profile, TransportKind::bypass, ExchangePhase::gradient_combine), legs * (kRowBytes + 16), 1e-12);
  EXPECT_NEAR(seconds(profile, TransportKind::bypass, ExchangePhase::dispatch), legs * (kRowBytes + 32), 1e-12);
}

// Choices and gate weights leave as messages of their own: each has a latency where it starts alone.
TEST(ExchangeTime, HasOneLatencyWhereMessagesStartTogether) {
  constexpr double kLatency = 1e-3;
  PlatformProfile profile = two_nodes_of_four();
  const auto latencies = [&](TransportKind kind, ExchangePhase phase) {
    for (LinkLevel& level : profile.levels) level.all_to_all.latency_s = 0;
    const double bytes = seconds(profile, kind, phase);
    for (LinkLevel& level : profile.levels) level.all_to_all.latency_s = kLatency;
    return std::round((seconds(profile, kind, phase) - bytes) / kLatency);
  };
  for (const bool together : {true, false}) {
    profile.overlaps_gradient_sums = together;
    EXPECT_EQ(latencies(TransportKind::flat, ExchangePhase::dispatch), together ? 1 : 2);
    EXPECT_EQ(latencies(TransportKind::flat, ExchangePhase::combine), 1);
    EXPECT_EQ(latencies(TransportKind::gather_tokens, ExchangePhase::dispatch), together ? 1 : 3);
    EXPECT_EQ(latencies(TransportKind::bypass, ExchangePhase::dispatch), together ? 2 : 6);  // of two legs
    EXPECT_EQ(latencies(TransportKind::bypass, ExchangePhase::gradient_dispatch), 2);
    EXPECT_EQ(latencies(TransportKind::bypass, ExchangePhase::gradient_combine), together ? 2 : 4);
  }
}

// The rows of the fullest rank arrive over a link that others of its node hardly use.
TEST(ExchangeTime, FollowsTheLoadOfALinkNotOfOneRankOnIt) {
  PlatformProfile profile = two_nodes_of_four();
  profile.levels[1].ranks_per_link = 4;
  EXPECT_EQ(Transfers(profile, 8).members_per_link({8, 1}), 4);
  EXPECT_EQ(Transfers(profile, 8).members_per_link({4, 2}), 2);
  EXPECT_EQ(Transfers(profile, 8).members_per_link({4, 1}), 1);  // within a node
  const auto flat = [&](double load, double link_load) {
    return seconds(profile, TransportKind::flat, ExchangePhase::combine, load, link_load);
  };
  EXPECT_NEAR(flat(3, 1.2), 1.2 * flat(1, 1), 1e-12);
  EXPECT_NEAR(flat(3, 3), 3 * flat(1, 1), 1e-12);
}

// A rank with all choices gets each token once: with bypass 1 / (1 - (7/8)^4) times the mean, not 8 times.
TEST(ExchangeTime, OfMergedRowsGrowsWithTheTokensOfTheFullestRank) {
  const LinkRows rows = rows_per_token(moe(), traits_of(TransportKind::bypass), 2, 4);
  const PlatformProfile profile = two_nodes_of_four();
  const double fullest = 1 / (1 - std::pow(7.0 / 8, 4));
  EXPECT_NEAR(seconds(profile, TransportKind::bypass, ExchangePhase::combine, 8),
              kRows * (rows.far / kFar + fullest * rows.near / kNear) * kRowBytes, 1e-12);
  EXPECT_NEAR(seconds(profile, TransportKind::bypass, ExchangePhase::combine, 1),
              kRows * (rows.far / kFar + rows.near / kNear) * kRowBytes, 1e-12);
}

TEST(ExchangeTime, CopiesAreRowsThatArePackedPassedOnAndSummed) {
  const MoeSpec spec = moe();
  const auto copied = [&](TransportKind kind, ExchangePhase phase, int64_t near) {
    return copied_bytes({.moe = spec,
                         .traits = traits_of(kind),
                         .group = {8, 1},
                         .near = near,
                         .tokens = kRows,
                         .row_bytes = kRowBytes},
                        phase) /
           (kRows * kRowBytes);
  };
  EXPECT_EQ(copied(TransportKind::flat, ExchangePhase::dispatch, 4), 2 * 4);        // read and written
  EXPECT_EQ(copied(TransportKind::flat, ExchangePhase::combine, 4), 4 + 2);         // rows, base, sum
  EXPECT_EQ(copied(TransportKind::halo, ExchangePhase::dispatch, 4), 2 * (4 + 2));  // half of them again by a gateway
  EXPECT_LT(copied(TransportKind::bypass, ExchangePhase::dispatch, 4),
            copied(TransportKind::halo, ExchangePhase::dispatch, 4));
  EXPECT_EQ(copied(TransportKind::halo, ExchangePhase::dispatch, 8), 2 * 4);  // on one node nothing is passed on
}

}  // namespace
}  // namespace mw::test
