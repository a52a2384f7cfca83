#include "layout/exchange_volume.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mw::test {
namespace {

MoeSpec experts(int64_t count, int64_t top_k) {
  MoeSpec moe;
  moe.experts = count;
  moe.top_k = top_k;
  return moe;
}

Islands islands_of(int ranks, NodeMap nodes) {
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return make_islands(members, nodes);
}

TEST(ExchangeVolume, OfEqualNodesIsTheClosedForm) {
  for (const TransportKind kind :
       {TransportKind::flat, TransportKind::halo, TransportKind::bypass, TransportKind::gather_tokens})
    for (const auto& [nodes, near] : std::vector<std::pair<int, int>>{{1, 1}, {1, 8}, {2, 8}, {4, 8}, {8, 1}, {4, 2}}) {
      const MoeSpec moe = experts(256, 8);
      const TransportTraits& traits = traits_of(kind);
      const LinkRows all = rows_per_token(moe, traits, islands_of(nodes * near, {near, {}})),
                     closed = rows_per_token(moe, traits, nodes, near);
      EXPECT_NEAR(all.near, closed.near, 1e-9) << traits.name << " " << nodes << " x " << near;
      EXPECT_NEAR(all.far, closed.far, 1e-9) << traits.name << " " << nodes << " x " << near;
    }
}

// Rows near and far of a token, 256 experts and top-8; EP 16, 32 and 64 on nodes of 8.
TEST(ExchangeVolume, OfBypassHasTheKnownValues) {
  const auto rows = [](int nodes) {
    return rows_per_token(experts(256, 8), traits_of(TransportKind::bypass), nodes, 8);
  };
  EXPECT_NEAR(rows(2).far, 0.997, 1e-3);
  EXPECT_NEAR(rows(2).near, 5.715, 0.03);
  EXPECT_NEAR(rows(4).far, 2.715, 6e-3);
  EXPECT_NEAR(rows(4).near, 6.36, 0.03);
  EXPECT_NEAR(rows(8).far, 4.638, 6e-3);
  EXPECT_NEAR(rows(8).near, 6.73, 0.03);
}

// Three ranks on two nodes, one expert each, top-1: every row has one way.
TEST(ExchangeVolume, OfUnevenNodesCountsTheGatewaysRows) {
  const Islands islands = islands_of(3, {2, {}});
  // Flat: ranks 0 and 1 send a third to each other and a third to rank 2, which sends two thirds far.
  const LinkRows flat = rows_per_token(experts(3, 1), traits_of(TransportKind::flat), islands);
  EXPECT_NEAR(flat.near, (1.0 / 3 + 1.0 / 3 + 0) / 3, 1e-12);
  EXPECT_NEAR(flat.far, (1.0 / 3 + 1.0 / 3 + 2.0 / 3) / 3, 1e-12);
  // By the node, the gateway of rank 2 keeps half of these two thirds and passes on the rest.
  for (const TransportKind kind : {TransportKind::halo, TransportKind::bypass}) {
    const LinkRows rows = rows_per_token(experts(3, 1), traits_of(kind), islands);
    EXPECT_NEAR(rows.far, flat.far, 1e-12);
    EXPECT_NEAR(rows.near, flat.near + 1.0 / 9, 1e-12);
  }
  // To slices of experts, every token goes to both other ranks.
  const LinkRows tokens = rows_per_token(experts(3, 1), traits_of(TransportKind::gather_tokens), islands);
  EXPECT_NEAR(tokens.near, 2.0 / 3, 1e-12);
  EXPECT_NEAR(tokens.far, 4.0 / 3, 1e-12);
}

TEST(ExchangeVolume, CountsWhatTravelsWithARow) {
  const MoeSpec moe = experts(16, 4);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::flat), 100, false), 4 * 100 + 2 * 4);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::flat), 100, true), 5 * 100 + 2 * 4);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::halo), 100, false), 4 * 100 + 3 * 4);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::halo), 100, true), 5 * 100 + 4 * 4);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::bypass), 100, false), 4 * 100 + 3 * 16);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::bypass), 100, true), 5 * 100 + 5 * 16);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::gather_tokens), 100, false), 4 * 100 + 3 * 16);
  EXPECT_EQ(bytes_per_row(moe, traits_of(TransportKind::gather_tokens), 100, true), 5 * 100 + 5 * 16);
}

}  // namespace
}  // namespace mw::test
