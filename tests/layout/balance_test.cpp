#include "layout/balance.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "layout/helpers.h"
#include "layout/row_split.h"

namespace mw::test {
namespace {

using Rows = std::vector<int64_t>;

Rows random_rows(size_t experts, std::mt19937& random) {
  std::lognormal_distribution<double> share(0, 0.8);
  Rows rows;
  for (size_t e = 0; e < experts; ++e) rows.push_back(static_cast<int64_t>(1000 * share(random)));
  return rows;
}

// Every expert on one rank, some on more; slots dense, homes first.
ExpertPlacement random_copies(int experts, int ranks, int copies, std::mt19937& random) {
  ExpertPlacement placement{ranks, {}};
  std::vector<int> held(static_cast<size_t>(ranks));
  placement.homes.resize(static_cast<size_t>(experts));
  for (int i = 0; i < copies; ++i) {
    auto& homes = placement.homes[static_cast<size_t>(i < experts ? i : static_cast<int>(random() % experts))];
    const int rank = static_cast<int>(random() % ranks);
    if (std::any_of(homes.begin(), homes.end(), [&](const ExpertHome& h) { return h.ep_rank == rank; })) continue;
    homes.push_back({rank, 0});
  }
  for (const bool replicas : {false, true})
    for (auto& homes : placement.homes)
      for (size_t j = replicas ? 1 : 0; j < (replicas ? homes.size() : 1); ++j)
        homes[j].slot = held[static_cast<size_t>(homes[j].ep_rank)]++;
  validate(placement);
  return placement;
}

double imbalance(const ExpertPlacement& placement, const Rows& rows, const std::vector<int64_t>& speeds) {
  return imbalance_of(rows_of_ranks(placement, split_rows(placement, rows, speeds)), speeds);
}

double slowest(const ExpertPlacement& placement, const RowQuotas& quotas, const std::vector<int64_t>& speeds) {
  const std::vector<int64_t> rows = rows_of_ranks(placement, quotas);
  double most = 0;
  for (size_t g = 0; g < rows.size(); ++g)
    most = std::max(most, static_cast<double>(rows[g]) / static_cast<double>(speeds[g]));
  return most;
}

TEST(RowSplit, QuotasAddUpAndNeverLoseToAnEvenSplit) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 7), experts = ranks + static_cast<int>(random() % 12);
    const ExpertPlacement placement = random_copies(experts, ranks, 2 * experts, random);
    const Rows rows = random_rows(static_cast<size_t>(experts), random);
    std::vector<int64_t> speeds;
    for (int g = 0; g < ranks; ++g) speeds.push_back(i % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 3));
    const RowQuotas quotas = split_rows(placement, rows, speeds);
    for (size_t e = 0; e < rows.size(); ++e) {
      EXPECT_EQ(std::accumulate(quotas[e].begin(), quotas[e].end(), int64_t{0}), rows[e]);
      EXPECT_GE(*std::min_element(quotas[e].begin(), quotas[e].end()), 0);
    }
    EXPECT_LE(slowest(placement, quotas, speeds), slowest(placement, split_rows_evenly(placement, rows), speeds) + 1);
  }
}

// One expert on three of three ranks, beside fixed loads: no other split is faster.
TEST(RowSplit, OfOneExpertIsTheBest) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const ExpertPlacement placement = {3, {{{0, 0}, {1, 0}, {2, 0}}, {{0, 1}}, {{1, 1}}, {{2, 1}}}};
    Rows rows;
    for (int e = 0; e < 4; ++e) rows.push_back(static_cast<int64_t>(random() % 30));
    const std::vector<int64_t> speeds = {1, 1, i % 2 == 0 ? 1 : 3};
    double best = 1e9;
    for (int64_t a = 0; a <= rows[0]; ++a)
      for (int64_t b = 0; a + b <= rows[0]; ++b)
        best = std::min(best, slowest(placement, {{a, b, rows[0] - a - b}, {rows[1]}, {rows[2]}, {rows[3]}}, speeds));
    EXPECT_LT(slowest(placement, split_rows(placement, rows, speeds), speeds), best + (i % 2 == 0 ? 1e-9 : 1.0));
  }
}

// Row by row: each goes to the first copy whose quota is not used up.
TEST(RowSplit, CopiesGetNeighbouringRows) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    const size_t sources = 1 + random() % 5, copies = 1 + random() % 4;
    Rows counts(sources), quotas(copies);
    for (int64_t& count : counts) count = static_cast<int64_t>(random() % 6);
    for (int64_t left = std::accumulate(counts.begin(), counts.end(), int64_t{0}); left > 0; --left)
      ++quotas[random() % copies];
    std::vector<Rows> expected(sources, Rows(copies));
    Rows left = quotas;
    for (size_t s = 0; s < sources; ++s)
      for (int64_t row = 0; row < counts[s]; ++row) {
        const auto copy = std::find_if(left.begin(), left.end(), [](int64_t n) { return n > 0; });
        --*copy;
        ++expected[s][static_cast<size_t>(copy - left.begin())];
      }
    RowRange of_source;
    for (size_t s = 0; s < sources; ++s) {
      of_source = {of_source.begin + of_source.count, counts[s]};
      RowRange of_copy;
      for (size_t c = 0; c < copies; ++c) {
        of_copy = {of_copy.begin + of_copy.count, quotas[c]};
        EXPECT_EQ(shared_rows(of_source, of_copy), expected[s][c]);
      }
    }
  }
}

TEST(RowSplit, FollowsPermutedRanks) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const ExpertPlacement placement = random_copies(12, 5, 20, random);
    const Rows rows = random_rows(12, random);
    std::vector<int64_t> speeds = {1, 2, 3, 1, 2}, permuted_speeds(5);
    const std::vector<int> to = {3, 0, 4, 1, 2};
    ExpertPlacement permuted = placement;
    for (auto& homes : permuted.homes)
      for (ExpertHome& home : homes) home.ep_rank = to[static_cast<size_t>(home.ep_rank)];
    for (size_t g = 0; g < 5; ++g) permuted_speeds[static_cast<size_t>(to[g])] = speeds[g];
    EXPECT_EQ(split_rows(placement, rows, speeds), split_rows(permuted, rows, permuted_speeds));
  }
}

TEST(Balance, PlacementsAreValidAndKeepTheirSlots) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 7), experts = ranks + static_cast<int>(random() % 20),
              replica_slots = static_cast<int>(random() % 3);
    const ExpertPlacement blocks = make_block_placement(experts, ranks);
    BalanceRanks group = even_ranks(blocks, replica_slots);
    if (i % 3 == 1) {
      group.per_node = 2;
      group.homes.clear();
    }
    if (i % 3 == 2)
      for (int64_t& speed : group.speeds) speed = 1 + static_cast<int64_t>(random() % 4);
    ExpertPlacement placement = blocks;
    for (int step = 0; step < 4; ++step) {
      const Rows rows = random_rows(static_cast<size_t>(experts), random);
      const ExpertPlacement next = balance_experts(placement, rows, group);
      ASSERT_NO_THROW(validate(next));
      EXPECT_EQ(next, balance_experts(placement, rows, group));
      for (int g = 0; g < ranks; ++g) {
        EXPECT_LE(std::ssize(next.copies_of(g)), group.slots[static_cast<size_t>(g)]);
        if (i % 3 == 1 && replica_slots > 0) continue;
        const std::vector<int> before = placement.experts_of(g), after = next.experts_of(g);
        EXPECT_EQ(before.size(), after.size());
        for (size_t slot = 0; slot < after.size(); ++slot) {  // who stays does not change its slot
          const bool stays = std::find(before.begin(), before.end(), after[slot]) != before.end();
          EXPECT_TRUE(!stays || after[slot] == before[slot]);
        }
      }
      const int per_node = group.per_node > 0 ? group.per_node : ranks;
      for (const auto& homes : next.homes)
        for (const ExpertHome& home : homes) EXPECT_EQ(home.ep_rank / per_node, homes.front().ep_rank / per_node);
      placement = next;
    }
  }
}

// All ways to put six experts on three ranks with two slots each.
TEST(Balance, IsNearTheBestOfAllPlacements) {
  std::mt19937 random(5);
  double all = 0;
  constexpr int kCases = 200;
  for (int i = 0; i < kCases; ++i) {
    const Rows rows = random_rows(6, random);
    const std::vector<int64_t> speeds = {1, 1, i % 2 == 0 ? 1 : 2};
    std::vector<int> order = {0, 0, 1, 1, 2, 2};
    double best = 1e9;
    do {
      std::vector<int64_t> sums(3);
      for (size_t e = 0; e < 6; ++e) sums[static_cast<size_t>(order[e])] += rows[e];
      best = std::min(best, imbalance_of(sums, speeds));
    } while (std::next_permutation(order.begin(), order.end()));
    const ExpertPlacement blocks = make_block_placement(6, 3);
    BalanceRanks group = even_ranks(blocks);
    group.speeds = speeds;
    const double found = imbalance(balance_experts(blocks, rows, group, {0, 0}), rows, speeds);
    EXPECT_GE(found, best - 1e-9);
    EXPECT_LE(found, 1.3 * best);
    all += found / best / kCases;
  }
  EXPECT_LE(all, 1.02);
}

// One hot expert needs replicas; without them no placement helps.
TEST(Balance, ReplicasShareAHotExpert) {
  const ExpertPlacement blocks = make_block_placement(16, 4);
  Rows rows(16, 10);
  rows[5] = 1000;
  const std::vector<int64_t> speeds(4, 1);
  EXPECT_GT(imbalance(balance_experts(blocks, rows, even_ranks(blocks)), rows, speeds), 3);
  const ExpertPlacement next = balance_experts(blocks, rows, even_ranks(blocks, 1));
  EXPECT_EQ(next.homes[5].size(), 4U);
  EXPECT_EQ(next.homes[5].front(), blocks.homes[5].front());  // its home stays
  EXPECT_LE(imbalance(next, rows, speeds), 1.01);
}

// Also where the copies that the search chose do not allow it: a rank would keep too few experts of its own.
TEST(Balance, RanksStayTheHomeOfAsManyExperts) {
  std::mt19937 random(6);
  int64_t moved = 0;
  for (int i = 0; i < 300; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 5), experts = ranks * (1 + static_cast<int>(random() % 4));
    const ExpertPlacement blocks = make_block_placement(experts, ranks);
    Rows rows = random_rows(static_cast<size_t>(experts), random);
    rows[random() % rows.size()] *= 20;
    const BalanceRanks group = even_ranks(blocks, 1 + i % 2);
    const ExpertPlacement next = balance_experts(blocks, rows, group);
    ASSERT_NO_THROW(validate(next));
    EXPECT_EQ(next.rank_offsets(), blocks.rank_offsets());
    for (int g = 0; g < ranks; ++g) EXPECT_LE(std::ssize(next.replicas_of(g)), 1 + i % 2);
    const std::vector<int64_t> speeds(static_cast<size_t>(ranks), 1);
    EXPECT_LE(imbalance(next, rows, speeds), imbalance(blocks, rows, speeds) + 1e-9);
    for (int e = 0; e < experts; ++e)
      moved +=
          next.homes[static_cast<size_t>(e)].front().ep_rank != blocks.homes[static_cast<size_t>(e)].front().ep_rank;
  }
  EXPECT_GT(moved, 0);
}

TEST(Balance, FasterRanksAndSlotsGetMore) {
  const ExpertPlacement blocks = make_block_placement(32, 4);
  const Rows rows(32, 100);
  BalanceRanks group = even_ranks(blocks);
  group.speeds = {2, 2, 1, 1};
  group.slots = {11, 11, 6, 6};
  EXPECT_LE(imbalance(balance_experts(blocks, rows, group), rows, group.speeds), 1.13);
}

TEST(Balance, LeavesAloneWhatIsBalanced) {
  const ExpertPlacement blocks = make_block_placement(64, 8);
  const ExpertPlacement next = balance_experts(blocks, Rows(64, 500), even_ranks(blocks));
  EXPECT_EQ(next, blocks);
  EXPECT_EQ(change_between(blocks, next).moves, 0);
}

TEST(Balance, ChangesAreCounted) {
  const ExpertPlacement from = {2, {{{0, 0}}, {{0, 1}}, {{1, 0}}, {{1, 1}}}};
  const ExpertPlacement to = {2, {{{1, 0}}, {{0, 1}, {1, 2}}, {{0, 0}}, {{1, 1}}}};
  const PlacementChange change = change_between(from, to);
  EXPECT_EQ(change.moves, 3);
  EXPECT_EQ(change.copies_to, (Rows{1, 2}));
  EXPECT_EQ(change.owners_to, (Rows{1, 1}));
  EXPECT_EQ(change.most_replicas_before, 0);
  EXPECT_EQ(change.most_replicas, 1);
  // A replica becomes the home: its rank receives states, and no weights.
  const ExpertPlacement swapped = {2, {{{1, 0}}, {{1, 2}, {0, 1}}, {{0, 0}}, {{1, 1}}}};
  const PlacementChange swap = change_between(to, swapped);
  EXPECT_EQ(swap.moves, 1);
  EXPECT_EQ(swap.copies_to, (Rows{0, 0}));
  EXPECT_EQ(swap.owners_to, (Rows{0, 1}));
}

// Ranks get 300 and 100 rows, then 200 each: the imbalance falls from 1.5 to 1. One owner arrives on each rank.
TEST(Balance, PaysWhatItSavesWithinTheHorizon) {
  const ExpertPlacement from = make_block_placement(4, 2), to = {2, {{{0, 0}}, {{1, 0}}, {{0, 1}}, {{1, 1}}}};
  const Rows rows = {150, 150, 50, 50};
  BalanceCosts costs{.expert_seconds = 0.1, .weight_bytes = 2e6, .state_bytes = 12e6, .bytes_per_second = 1e6};
  costs.horizon = 279;  // 14 s to receive, 0.05 s saved in each step
  EXPECT_LE(seconds_saved(from, to, rows, Rows{1, 1}, costs), 0);
  costs.horizon = 281;
  EXPECT_GT(seconds_saved(from, to, rows, Rows{1, 1}, costs), 0);
  EXPECT_LE(seconds_saved(from, from, rows, Rows{1, 1}, costs), 0);
}

TEST(Balance, ReplicasHaveToEarnTheirTraffic) {
  const ExpertPlacement from = make_block_placement(4, 2), to = {2, {{{0, 0}, {1, 2}}, {{0, 1}}, {{1, 0}}, {{1, 1}}}};
  const Rows rows = {250, 50, 50, 50};
  BalanceCosts costs{.expert_seconds = 0.1, .bytes_per_second = 1e6, .horizon = 100};
  EXPECT_GT(seconds_saved(from, to, rows, Rows{1, 1}, costs), 0);
  costs.replica_seconds = 0.051;  // of 0.05 s saved
  EXPECT_NEAR(seconds_saved_per_step(from, to, rows, Rows{1, 1}, costs), -0.001, 1e-12);
  EXPECT_LE(seconds_saved(from, to, rows, Rows{1, 1}, costs), 0);
}

// One expert has most rows of all: places alone leave 340 and 60 rows, a replica 200 and 200. Replicas that cost more
// than they save are left out, also those that were there.
TEST(Balance, TakesAsManyReplicasAsPay) {
  const ExpertPlacement now = make_block_placement(4, 2);
  const Rows rows = {300, 40, 30, 30}, speeds = {1, 1};
  BalanceCosts costs{.expert_seconds = 0.1, .bytes_per_second = 1e6, .horizon = 100};
  const ExpertPlacement even = best_placement(now, rows, speeds, 2, costs);
  EXPECT_TRUE(even.has_replicas());
  EXPECT_EQ(rows_of_ranks(even, split_rows(even, rows, Rows{1, 1})), (Rows{200, 200}));
  costs.replica_seconds = 1;
  const ExpertPlacement places = best_placement(now, rows, speeds, 2, costs);
  EXPECT_FALSE(places.has_replicas());
  EXPECT_FALSE(best_placement(even, rows, speeds, 2, costs).has_replicas());
  costs.state_bytes = 1e9;
  EXPECT_EQ(best_placement(now, rows, speeds, 2, costs), now);
}

}  // namespace
}  // namespace mw::test
