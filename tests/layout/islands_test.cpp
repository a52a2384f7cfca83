#include "layout/islands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "layout/helpers.h"

namespace mw::test {
namespace {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(NodeMap, CountsConsecutiveRanksOrFollowsTheLauncher) {
  EXPECT_EQ((NodeMap{}.node_of(7)), 0);
  EXPECT_EQ((NodeMap{3, {}}.node_of(7)), 2);
  EXPECT_EQ((NodeMap{3, {5, 5, 1}}.node_of(2)), 1);
  const std::vector<uint64_t> names = {900, 17, 900, 3};
  EXPECT_EQ(number_nodes(names).node_of_rank, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_THROW((NodeMap{0, {0, 1}}.node_of(2)), Error);
}

TEST(Islands, NumberMembersByNode) {
  const Islands islands = make_islands(std::vector<int>{4, 6, 5, 9, 0}, NodeMap{2, {}});
  EXPECT_EQ(islands.island_of, (std::vector<int>{0, 1, 0, 2, 3}));
  EXPECT_EQ(islands.place_of, (std::vector<int>{0, 0, 1, 0, 0}));
  EXPECT_EQ(islands.members, (std::vector<std::vector<int>>{{0, 2}, {1}, {3}, {4}}));
  EXPECT_TRUE(islands.is_near(0, 2));
  EXPECT_FALSE(islands.is_near(0, 1));
}

// What one member has to carry as a gateway does not depend on the routing, and its NIC is its own.
TEST(Islands, EqualIslandsHaveAlignedGateways) {
  const Islands islands = make_islands(first_ranks(12), NodeMap{4, {}});
  for (int member = 0; member < 12; ++member) {
    std::vector<int> aligned;
    for (int source = member % 4; source < 12; source += 4)
      if (source / 4 != member / 4) aligned.push_back(source);
    EXPECT_EQ(islands.sources_of(member), aligned);
  }
}

TEST(Islands, EverySourceHasOneGatewayInEachOtherIslandAndSourcesAreSpread) {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (int64_t per_node = 1; per_node <= 6; ++per_node) {
      const Islands islands = make_islands(first_ranks(ranks), NodeMap{per_node, {}});
      std::vector<int> served(static_cast<size_t>(ranks));
      for (int member = 0; member < ranks; ++member)
        for (const int source : islands.sources_of(member)) {
          EXPECT_EQ(islands.gateway(source, islands.island_of[static_cast<size_t>(member)]), member);
          ++served[static_cast<size_t>(source)];
        }
      for (const int islands_served : served) EXPECT_EQ(islands_served, islands.count() - 1);
      for (int source = 0; source < ranks; ++source)
        for (int island = 0; island < islands.count(); ++island) {
          const int gateway = islands.gateway(source, island);
          EXPECT_EQ(islands.island_of[static_cast<size_t>(gateway)], island);
        }
    }
}

}  // namespace
}  // namespace mw::test
