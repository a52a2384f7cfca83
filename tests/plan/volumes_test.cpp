#include "plan/volumes.h"

#include <bitset>
#include <set>

#include "plan/helpers.h"
#include "plan/load.h"
#include "plan/transfers.h"

namespace mw::test {
namespace {

// X-MoE, figure 4 and section 5.4.2: 256 experts, k = 8, 8 ranks per node.
TEST(Volumes, RedundancyOfXMoe) {
  const double percent[] = {87.5, 75.09, 54.82, 33.8, 18.5, 9.2};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(100 * redundancy(256, 8, 1 << i), percent[i], 0.05) << (1 << i) << " nodes";
  EXPECT_DOUBLE_EQ(redundancy(8, 1, 8), 0);
  EXPECT_NEAR(distinct_groups(4, 4, 4), 4, 1e-12);
  MoeSpec moe;
  moe.experts = 256;
  moe.top_k = 8;
  const RowsBetweenNodes rows = rows_between_nodes(moe, 4);
  EXPECT_NEAR(1 - rows.bypass / rows.flat, 0.5482, 1e-4);
}

// Every way to keep 2 of 4 groups of 3 experts and to choose 3 experts in them, counted.
TEST(Volumes, NodesOfChoicesLimitedToGroups) {
  MoeSpec moe;
  moe.experts = 12;
  moe.top_k = 3;
  moe.groups = 4;
  moe.kept_groups = 2;
  for (const int nodes : {1, 2, 4, 12}) {
    int ways = 0, reached = 0;
    for (int groups = 0; groups < 16; ++groups)
      for (int chosen = 0; chosen < 1 << 12; ++chosen) {
        if (std::bitset<4>(static_cast<unsigned>(groups)).count() != 2) continue;
        if (std::bitset<12>(static_cast<unsigned>(chosen)).count() != 3) continue;
        bool is_kept = true;
        std::set<int> on;
        for (int e = 0; e < 12; ++e) {
          if ((chosen >> e & 1) == 0) continue;
          is_kept = is_kept && (groups >> e / 3 & 1) == 1;
          on.insert(e * nodes / 12);
        }
        if (!is_kept) continue;
        ++ways;
        reached += static_cast<int>(on.size());
      }
    EXPECT_NEAR(distinct_nodes(moe, nodes), static_cast<double>(reached) / ways, 1e-12) << nodes;
  }
  moe.groups = moe.kept_groups = 1;
  EXPECT_DOUBLE_EQ(distinct_nodes(moe, 4), distinct_groups(12, 3, 4));
}

// Two MoE layers of three: 16 * 9 tokens, top-2, bf16 rows of 16 there and back, their gradients too, and fp32 gate
// weights with their gradients; three quarters of the experts are elsewhere.
TEST(Volumes, ExchangedInAStep) {
  RunSpec run;
  run.native.width = 16;
  run.native.layers = 3;
  run.native.dense_layers = 1;
  run.native.dense_width = 20;
  run.native.experts = 8;
  run.native.top_k = 2;
  run.train.seq_len = 9;
  run.train.global_batch = 16;
  run.train.dtype = "bf16";
  run.mesh.ep = 4;
  const ModelSpec model = build_native_model(run.native);
  const Mesh mesh = make_mesh(run.mesh, 4);
  const double rows = 16 * 9 * 2 * 2 * 0.75;
  EXPECT_DOUBLE_EQ(exchanged_bytes(model, run, mesh, TransportKind::flat), rows * (4 * 32 + 8));
  EXPECT_EQ(exchanged_bytes(model, run, mesh, TransportKind::in_place), 0);
  run.recompute = "moe";  // dispatched once more
  EXPECT_DOUBLE_EQ(exchanged_bytes(model, run, mesh, TransportKind::flat), rows * (5 * 32 + 8));
  run.recompute = "none";
  run.mesh.ep = 2;
  run.mesh.tp = 2;
  const double kept = exchanged_bytes(model, run, make_mesh(run.mesh, 4), TransportKind::flat);
  run.moe.tp_mode = "ted";
  EXPECT_DOUBLE_EQ(exchanged_bytes(model, run, make_mesh(run.mesh, 4, "ted"), TransportKind::flat), 2 * kept);
}

// X-MoE, table 4: 4096 tokens, k = 8, D 7168, F 2048, two matrices. The paper prints GiB as GB.
TEST(Volumes, ActivationMemoryOfXMoe) {
  EXPECT_EQ(kept_row_bytes(4096 * 8, 7168, 2048, false, 2), 1.125 * 0x1p30);
  EXPECT_EQ(kept_row_bytes(4096 * 8, 7168, 2048, true, 2), 1.25 * 0x1p30);
}

// X-MoE, figure 17: SSMB saves more than TED for DeepSeek, less for Mixtral, at every length; Arctic turns at k*S =
// 2*F.
TEST(Volumes, CrossoverOfSequenceShardingAndTed) {
  const auto favours_sharding = [](int64_t top_k, int64_t width, int64_t expert_width, int64_t tokens) {
    return ssmb_saving(1, top_k, tokens, width, 4) > ssmb_cost(expert_width, width, 4);
  };
  for (const int64_t tokens : {2048, 4096, 8192}) {
    EXPECT_TRUE(favours_sharding(8, 7168, 2048, tokens)) << tokens;    // DeepSeek-V3
    EXPECT_TRUE(favours_sharding(6, 2048, 1408, tokens)) << tokens;    // DeepSeek-MoE
    EXPECT_FALSE(favours_sharding(2, 4096, 14336, tokens)) << tokens;  // Mixtral 8x7B
    EXPECT_FALSE(favours_sharding(2, 6144, 16384, tokens)) << tokens;  // Mixtral 8x22B
  }
  EXPECT_FALSE(favours_sharding(2, 7168, 4864, 4096));  // Arctic
  EXPECT_TRUE(favours_sharding(2, 7168, 4864, 8192));
}

// Piper, table IV, with bytes as bytes: GB for the first and GLaM, GiB for the others, as the paper mixes them.
TEST(Volumes, MigrationOfPiper) {
  const struct {
    int64_t experts, width, expert_width;
    double printed, unit, ms;
  } rows[] = {
      {128, 768, 2048, 1.21, 1e9, 24.2},       {8, 4096, 14336, 2.63, 0x1p30, 56.4},
      {8, 6144, 16384, 4.50, 0x1p30, 96.6},    {8, 6144, 32768, 9.00, 0x1p30, 193.3},
      {64, 8192, 32768, 103.08, 1e9, 2061.6},  {160, 5120, 1536, 7.04, 0x1p30, 151.0},
      {256, 7168, 2048, 21.00, 0x1p30, 451.0},
  };
  for (const auto& r : rows) {
    const double bytes = migration_bytes(r.experts, r.width, r.expert_width, 8, 16);
    EXPECT_NEAR(bytes / r.unit, r.printed, 0.01) << r.experts << " x " << r.width;
    EXPECT_NEAR(bytes / 50e9 * 1e3, r.ms, 0.2) << r.experts << " x " << r.width;
  }
}

TEST(Load, FollowsItsDistribution) {
  LoadModel even({1e6, {}}), plain({8, {}}), wild({1, {}});
  EXPECT_NEAR(even.of(128, 8).p99, 1, 0.01);
  EXPECT_DOUBLE_EQ(wild.of(128, 1).p99, 1);
  for (const int64_t ep : {2, 8, 128}) {
    EXPECT_GT(plain.of(128, ep).mean, 1);
    EXPECT_GT(plain.of(128, ep).p99, plain.of(128, ep).mean);
    EXPECT_GT(wild.of(128, ep).mean, plain.of(128, ep).mean);
  }
  EXPECT_NEAR(wild.of(128, 128).mean, 5.4, 0.3);  // of 128 exponential shares the largest: the harmonic number
}

TEST(Load, OfAHistogramIsExact) {
  LoadModel load({8, {1, 2, 3, 6}});
  EXPECT_DOUBLE_EQ(load.of(4, 2).mean, 1.5);
  EXPECT_DOUBLE_EQ(load.of(4, 2).p99, 1.5);
  EXPECT_DOUBLE_EQ(load.of(4, 4).mean, 2);
  EXPECT_THROW(LoadModel({8, {0, 0}}), Error);
  EXPECT_THROW(LoadModel({8, {1, -1}}), Error);
}

TEST(Transfers, TakeTheLinksThatTheGroupCrosses) {
  PlatformProfile p = shipped_profile("h200x8");
  p.levels = {{"near", 4, {0, 100}, {0, 100}, {0, 100}}, {"far", 64, {1, 10}, {2, 10}, {3, 10}}};
  const Transfers transfers(p);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({1, 1}, 100), 0);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({4, 1}, 100), 0.75);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 100), 1 + 5);    // half of it far
  EXPECT_DOUBLE_EQ(transfers.all_to_all({4, 4}, 100), 1 + 7.5);  // one member per node
  EXPECT_DOUBLE_EQ(transfers.ring({4, 1}, 100, 1), 0.75);
  EXPECT_DOUBLE_EQ(transfers.ring({8, 1}, 100, 2), 4 + 175.0 / 40);  // four members share the node's links
  EXPECT_DOUBLE_EQ(transfers.ring({8, 4}, 100, 2), 4 + 175.0 / 10);
  EXPECT_DOUBLE_EQ(transfers.message(1, 3, 100), 1);
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 100), 3 + 10);
}

// A rate is that of the bytes which leave a rank over the level.
TEST(Transfers, TakeTheRateOfTheirSize) {
  PlatformProfile p = shipped_profile("h200x8");
  const LinkCost cost{1, 40, {{50, 10}, {200, 40}}};
  p.levels = {{"near", 4, {0, 1e6}, {0, 1e6}, {0, 1e6}}, {"far", 64, cost, cost, cost}};
  const Transfers transfers(p);
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 20), 1 + 2);        // as the smallest known
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 100), 1 + 4);       // between two, by the logarithm
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 800), 1 + 20);      // as the largest
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 100), 1 + 5);  // 50 stay near
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 200), 1 + 4);
  EXPECT_DOUBLE_EQ(transfers.ring({8, 1}, 800 / 7.0 * 4, 1), 1 + 4);  // 400 around, four members share them
}

// The shape that is most alike: in members, then in distance; the level itself is one too.
TEST(Transfers, TakeTheCostsOfTheGroupMostAlike) {
  PlatformProfile p = shipped_profile("h200x8");
  const auto cost = [](double latency) { return LinkCost{latency, 1e30}; };
  p.levels = {
      {"near", 8, cost(1), cost(2), cost(3),
       std::vector<GroupCosts>{{2, 1, cost(10), cost(20)}, {2, 4, cost(11), cost(21)}, {4, 1, cost(12), cost(22)}}},
      {"far", 512, cost(4), cost(5), cost(6), std::vector<GroupCosts>{{64, 8, cost(13), cost(23)}}}};
  const Transfers transfers(p);
  const auto expect = [&](RankGroup group, double all_to_all, double ring) {
    EXPECT_DOUBLE_EQ(transfers.all_to_all(group, 1), all_to_all) << group.size << ' ' << group.stride;
    EXPECT_DOUBLE_EQ(transfers.ring(group, 1, 2), 2 * ring) << group.size << ' ' << group.stride;
  };
  expect({8, 1}, 1, 2);
  expect({4, 1}, 12, 22);
  expect({4, 2}, 12, 22);
  expect({2, 1}, 10, 20);
  expect({2, 4}, 11, 21);
  expect({16, 1}, 13, 23);  // two nodes: fewer members than either, and nearer to 64 than to 512
  expect({512, 1}, 4, 5);
  expect({32, 8}, 13, 23);
  EXPECT_DOUBLE_EQ(transfers.message(0, 1, 1), 3);
}

}  // namespace
}  // namespace mw::test
