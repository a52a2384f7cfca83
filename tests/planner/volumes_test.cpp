#include "planner/volumes.h"

#include <bitset>
#include <map>
#include <set>

#include "planner/helpers.h"
#include "planner/layer_time.h"
#include "planner/transfers.h"

namespace mw::test {
namespace {

// X-MoE, figure 4 and section 5.4.2: the share of the rows between nodes that a de-duplicating exchange (RBD) need not
// send; 256 experts, k = 8, 8 ranks per node.
TEST(Volumes, RedundancyOfXMoe) {
  const auto redundancy = [](int64_t experts, int64_t top_k, int64_t groups) {
    return 1 - distinct_groups(experts, top_k, groups) / static_cast<double>(top_k);
  };
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

// By hand: 2 nodes of 2 ranks, 4 experts of which a token takes 2, rows of 10 bytes, 100 tokens a rank; matrices of
// 8 x 5 elements. Every second row goes to the other node; 5 / 6 of the tokens have a choice on each node.
TEST(Volumes, OfEveryWayToExchange) {
  LayerSpec layer;
  layer.moe.experts = 4;
  layer.moe.top_k = 2;
  layer.moe.width = 8;
  const auto volumes = [&](GroupShape shape) {
    std::map<std::string, std::pair<double, double>> by_name;
    for (const ExchangeVolume& v : exchange_volumes(layer, 5, 100, shape, 2))
      by_name[v.transport] = {v.forward.near, v.forward.far};
    return by_name;
  };
  const int64_t matrices = halves_of(layer.activation) + 1;
  auto v = volumes({2, 2});
  const double rows = 2 * 100 * 10, copies = 2 * 5.0 / 6;
  EXPECT_NEAR(v["flat"].first, rows * 0.5, 1e-9);
  EXPECT_NEAR(v["flat"].second, rows * 1, 1e-9);
  EXPECT_NEAR(v["halo"].first, rows * (0.5 + 0.5), 1e-9);
  EXPECT_NEAR(v["halo"].second, rows * 1, 1e-9);
  EXPECT_NEAR(v["bypass"].second, rows * copies / 2, 1e-9);
  // Each of four ranks has one of four experts: a token's two choices lie on two ranks.
  EXPECT_NEAR(v["bypass"].first, rows * 2 / 2, 1e-9);
  EXPECT_NEAR(v["gather_tokens"].first, rows * 1, 1e-9);
  EXPECT_NEAR(v["gather_tokens"].second, rows * 2, 1e-9);
  EXPECT_NEAR(v["gather_weights"].first, static_cast<double>(matrices * 40 * 2 * 2), 1e-9);
  EXPECT_NEAR(v["gather_weights"].second, static_cast<double>(matrices * 40 * 2), 1e-9);
  for (const ExchangeVolume& volume : exchange_volumes(layer, 5, 100, {2, 2}, 2)) {
    // The gradients of weights are twice as wide as those.
    const double times = std::string_view(volume.transport) == "gather_weights" ? 3 : 1;
    EXPECT_DOUBLE_EQ(volume.backward.near, times * volume.forward.near) << volume.transport;
    EXPECT_DOUBLE_EQ(volume.backward.far, times * volume.forward.far) << volume.transport;
  }
  for (const auto& [name, one_node] : volumes({1, 4})) EXPECT_EQ(one_node.second, 0) << name;
  for (const auto& [name, apart] : volumes({4, 1})) EXPECT_EQ(apart.first, 0) << name;
  // X-MoE, section 5.4.2: over four nodes a bypass sends 54.8 % less between them; a bound of 2.21 times.
  layer.moe.experts = 256;
  layer.moe.top_k = 8;
  v = volumes({4, 8});
  EXPECT_NEAR(v["flat"].second / v["bypass"].second, 2.21, 0.01);
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
  run.train.dtype = DType::bf16;
  run.mesh.ep = 4;
  const ModelSpec model = build_native_model(run.native);
  const Mesh mesh = make_mesh(run.mesh, 4);
  const std::vector<TransportKind> flat(3, TransportKind::flat), in_place(3, TransportKind::in_place);
  const double rows = 16 * 9 * 2 * 2 * 0.75;
  const auto bytes_of = [&](const Mesh& on, const std::vector<TransportKind>& transports) {
    return exchanged_bytes(model, run, on, {}, transports, {}, {}).all();
  };
  EXPECT_DOUBLE_EQ(bytes_of(mesh, flat), rows * (4 * 32 + 8));
  EXPECT_EQ(bytes_of(mesh, in_place), 0);
  const std::vector<TransportKind> mixed = {TransportKind::in_place, TransportKind::flat, TransportKind::in_place};
  EXPECT_DOUBLE_EQ(bytes_of(mesh, mixed), rows / 2 * (4 * 32 + 8));
  run.recompute = Recompute::moe;  // dispatched once more
  EXPECT_DOUBLE_EQ(bytes_of(mesh, flat), rows * (5 * 32 + 8));
  // Every token goes to the three other ranks once, with its choices and gate weights.
  const std::vector<TransportKind> tokens(3, TransportKind::gather_tokens);
  EXPECT_DOUBLE_EQ(bytes_of(mesh, tokens), 16 * 9 * 2 * 3 * (5 * 32 + 5 * 8));
  run.recompute = Recompute::none;
  EXPECT_DOUBLE_EQ(bytes_of(mesh, tokens), 16 * 9 * 2 * 3 * (4 * 32 + 3 * 8));
  run.mesh.ep = 2;
  run.mesh.tp = 2;
  const double kept = bytes_of(make_mesh(run.mesh, 4), flat);
  run.moe.tp_mode = MoeTpMode::ted;
  EXPECT_DOUBLE_EQ(bytes_of(make_mesh(run.mesh, 4, MoeTpMode::ted), flat), 2 * kept);
  // Two nodes of two: a third of what goes to other ranks stays on the node.
  run.mesh.tp = 1;
  run.mesh.ep = 4;
  run.moe.tp_mode = MoeTpMode::ssmb;
  const LinkBytes split = exchanged_bytes(model, run, mesh, {2, {}}, flat, {}, {});
  EXPECT_DOUBLE_EQ(split.all(), rows * (4 * 32 + 8));
  EXPECT_DOUBLE_EQ(split.near, split.all() / 3);
}

// By hand: 8 experts of 16 x 12 and 3 matrices on two nodes of two ranks; each rank's two go to the three others, and
// in both micro-batches fp32 gradients come back. Of one piece and one form there is one gather. Of two pieces with one
// slot both passes gather both, but for the one piece that the pass before has left; of two forms every pass gathers
// its own unless there are slots for all. With recompute, a CPU gathers both forms of up.
TEST(Volumes, GatheredInAStep) {
  RunSpec run;
  run.native.width = 16;
  run.native.layers = 2;
  run.native.dense_layers = 1;
  run.native.dense_width = 20;
  run.native.experts = 8;
  run.native.expert_width = 12;
  run.train.micro_batches = 2;
  run.train.dtype = DType::f32;
  run.mesh.ep = 4;
  run.moe.transport = "gather_weights";
  const ModelSpec model = build_native_model(run.native);
  const auto bytes_of = [&](const Platform& platform, int64_t chunks, int64_t slots = 2) {
    run.moe.row_chunks = chunks;
    run.moe.weight_slots = slots;
    const Plan plan = make_plan(model, run, 4, 1, platform);
    return exchanged_bytes(model, run, plan.mesh, {2, {}}, plan.transports, plan.gathers, plan.weight_cache.gathers);
  };
  const double elements = 3 * 16 * 12, once = 8 * 3, twice = 2 * once;  // experts x ranks that they go to
  for (const auto& [chunks, slots] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {5, 0}}) {
    const LinkBytes bytes = bytes_of({}, chunks, slots);
    EXPECT_DOUBLE_EQ(bytes.all(), (once + twice) * elements * 4);
    EXPECT_DOUBLE_EQ(bytes.near, bytes.all() / 3);
  }
  EXPECT_DOUBLE_EQ(bytes_of({}, 2, 1).all(), (4 * once + twice) * elements * 4);
  run.train.dtype = DType::bf16;
  const double padded = 2 * 64 * 64;  // elements of up [24, 16] and down [16, 12] in packed forms
  EXPECT_DOUBLE_EQ(bytes_of({true, true}, 2).all(), once * padded * 2 + twice * elements * 4);
  EXPECT_DOUBLE_EQ(bytes_of({true, false}, 2).all(), twice * (2 * padded * 2 + elements * 4));
  EXPECT_DOUBLE_EQ(bytes_of({true, false}, 2, 0).all(), once * 2 * padded * 2 + twice * elements * 4);
  run.recompute = Recompute::selective;
  EXPECT_DOUBLE_EQ(bytes_of({true, true}, 2).all(), once * padded * 2 + twice * elements * 4);
  EXPECT_DOUBLE_EQ(bytes_of({false, false}, 2).all(), twice * (2.5 * padded * 4 + elements * 4));
}

// On links of a byte a second, whose bytes no product hides: gathers of both passes and sums of gradients, around a
// ring. What hides them is attention, and with several pieces the products of others. Of what is in its slot already
// gradients alone are summed.
TEST(Volumes, OfGatheredWeightsTakeTime) {
  NativeModel native;
  native.vocab = 64;
  native.width = 256;
  native.layers = 1;
  native.expert_width = 64;
  native.heads = native.kv_heads = 4;
  native.head_dim = 64;
  native.experts = 8;
  native.top_k = 2;
  RunSpec run;
  run.train.dtype = DType::bf16;
  run.train.seq_len = 1024;
  run.train.global_batch = 4;
  run.mesh.ep = 4;
  run.moe.transport = "gather_weights";
  const LayerKinds kinds(build_native_model(native), run.moe.transport);
  PlatformProfile profile = shipped_profile("h200x8");
  constexpr double kSent = 8 * 3 * 256 * 64 * 0.75;  // elements
  const auto exchange = [&](double bytes_per_s, int64_t chunks) {
    profile.levels = {{"near", 8, {0, bytes_per_s}, {0, bytes_per_s}, {0, bytes_per_s}}};
    run.moe.row_chunks = chunks;
    LayerTimeModel model(kinds, run, profile, ExpertLoad{}, 4);
    const LayerTimes& times = model.of(layout_of(run), make_mesh(run.mesh, 4));
    const LayerTime &time = times.kinds.front(), &cached = times.cached.front();
    EXPECT_EQ(cached.forward_exchange, 0);
    EXPECT_LE(cached.backward_exchange, time.backward_exchange);
    if (bytes_per_s == 1) {
      EXPECT_NEAR(cached.backward_exchange, 4 * kSent, 1e-3 * kSent);
    }
    return std::pair(time.forward_exchange, time.backward_exchange);
  };
  for (const int64_t chunks : {1, 2}) {
    const auto [forward, backward] = exchange(1, chunks);
    EXPECT_NEAR(forward, 2 * kSent, 1e-3 * kSent) << chunks;
    EXPECT_NEAR(backward, (2 + 4) * kSent, 1e-3 * kSent) << chunks;
  }
  EXPECT_EQ(exchange(1e12, 1).first, 0);   // behind attention
  EXPECT_GT(exchange(1e12, 1).second, 0);  // the last sum
  EXPECT_LT(exchange(1e12, 2).second, exchange(1e12, 1).second);
}

// X-MoE, table 4: 4096 tokens, k = 8, D 7168, F 2048, in bf16. A rank keeps of each routed row, every tensor once, what
// was dispatched and returned (2 D), and the output of the up projection and its activation (2 F; with a gate 3 F). The
// paper, without a gate, prints GiB as GB.
TEST(Volumes, ActivationMemoryOfXMoe) {
  const auto kept_row_bytes = [](int64_t rows, int64_t width, int64_t expert_width, bool gated) {
    return static_cast<double>(rows * (2 * width + (gated ? 3 : 2) * expert_width) * 2);
  };
  EXPECT_EQ(kept_row_bytes(4096 * 8, 7168, 2048, false), 1.125 * 0x1p30);
  EXPECT_EQ(kept_row_bytes(4096 * 8, 7168, 2048, true), 1.25 * 0x1p30);
}

// X-MoE, appendix C.2: what sharding the sequence in MoE blocks over `tp` ranks saves of activations, and what it costs
// in model states beside cutting the experts over them. Bytes per rank and layer, bf16, ZeRO-1, one expert per rank.
double ssmb_saving(int64_t top_k, int64_t tokens, int64_t width, int64_t tp) {
  return 4 * static_cast<double>(top_k * tokens * width) * static_cast<double>(tp - 1) / static_cast<double>(tp);
}
double ssmb_cost(int64_t expert_width, int64_t width, int64_t tp) {
  return 8 * static_cast<double>(expert_width * width) * static_cast<double>(tp - 1) / static_cast<double>(tp);
}

// X-MoE, figure 17: SSMB saves more than TED for DeepSeek, less for Mixtral, at every length; Arctic turns at k*S =
// 2*F.
TEST(Volumes, CrossoverOfSequenceShardingAndTed) {
  const auto favours_sharding = [](int64_t top_k, int64_t width, int64_t expert_width, int64_t tokens) {
    return ssmb_saving(top_k, tokens, width, 4) > ssmb_cost(expert_width, width, 4);
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

// X-MoE, appendix C.2, the volume of tensor parallelism over G ranks: of S tokens of width H each gather or sum is
// S*H*(G-1)/G elements of a rank. The time model on links of a byte a second takes as many seconds.
TEST(Volumes, OfTokensThatTensorParallelismMoves) {
  struct Shape {
    int64_t g, tokens, width;
    Recompute recompute;
  };
  for (const Shape& s : {Shape{2, 512, 128, Recompute::none}, Shape{4, 1024, 192, Recompute::moe},
                         Shape{4, 256, 320, Recompute::full}, Shape{8, 2048, 256, Recompute::full}}) {
    NativeModel native;
    native.vocab = 64;
    native.width = s.width;
    native.layers = 2;
    native.dense_layers = 1;
    native.dense_width = native.expert_width = 64;
    native.heads = native.kv_heads = 8;
    native.head_dim = 16;
    native.experts = 8;
    native.top_k = 2;
    const LayerKinds kinds(build_native_model(native), "auto");
    PlatformProfile profile = shipped_profile("h200x8");
    profile.levels = {{"near", 8, {0, 1}, {0, 1}, {0, 1}}};
    const auto expect = [&](MoeTpMode mode, TokenMoves dense_layer, TokenMoves moe_layer) {
      RunSpec run;
      run.train.dtype = DType::bf16;
      run.train.seq_len = s.tokens;
      run.train.global_batch = run.train.micro_batches = 1;
      run.mesh.tp = s.g;
      run.moe.tp_mode = mode;
      run.recompute = s.recompute;
      LayerTimeModel model(kinds, run, profile, ExpertLoad{}, s.g);
      const LayerTimes& times = model.of(layout_of(run), make_mesh(run.mesh, static_cast<int>(s.g), mode));
      const auto bytes = static_cast<double>(2 * s.tokens * s.width * (s.g - 1) / s.g);
      const TokenMoves wanted[] = {dense_layer, moe_layer};
      for (size_t kind = 0; kind < 2; ++kind) {
        EXPECT_DOUBLE_EQ(times.kinds[kind].forward_exchange, wanted[kind].forward * bytes)
            << word_of(mode) << " " << s.g;
        EXPECT_DOUBLE_EQ(times.kinds[kind].backward_exchange, wanted[kind].backward * bytes)
            << word_of(mode) << " " << s.g;
      }
    };
    const int again = s.recompute == Recompute::full ? 2 : 0;  // attention
    expect(MoeTpMode::ssmb, {4, 6 + again}, {2, 3 + again});
    expect(MoeTpMode::ted, {4, 6 + again}, {4, 6 + again});
  }
}

// Piper, table IV: bytes that one of `ranks` ranks sends when every expert of a layer moves, of three matrices; GB for
// the first and GLaM, GiB for the others, as the paper mixes them.
TEST(Volumes, MigrationOfPiper) {
  const auto migration_bytes = [](int64_t experts, int64_t width, int64_t expert_width, int64_t ranks,
                                  int64_t bytes_per_parameter) {
    return static_cast<double>(3 * experts * width * expert_width * bytes_per_parameter) / static_cast<double>(ranks);
  };
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

TEST(Transfers, TakeTheLinksThatTheGroupCrosses) {
  PlatformProfile p = shipped_profile("h200x8");
  p.levels = {{"near", 4, {0, 100}, {0, 100}, {0, 100}}, {"far", 64, {1, 10}, {2, 10}, {3, 10}}};
  const Transfers transfers(p, 64);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({1, 1}, 100), 0);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({4, 1}, 100), 0.75);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 100), 1 + 5);    // half of it far
  EXPECT_DOUBLE_EQ(transfers.all_to_all({4, 4}, 100), 1 + 7.5);  // one member per node
  EXPECT_DOUBLE_EQ(transfers.ring({4, 1}, 100, 1), 0.75);
  EXPECT_DOUBLE_EQ(transfers.ring({8, 1}, 100, 2), 4 + 175.0 / 40);  // four members share the node's links
  EXPECT_DOUBLE_EQ(transfers.ring({8, 4}, 100, 2), 4 + 175.0 / 10);
  EXPECT_DOUBLE_EQ(transfers.at_best({4, 1}, 100, 0), 1);
  EXPECT_DOUBLE_EQ(transfers.at_best({8, 1}, 100, 20), 1 + 2);
  EXPECT_DOUBLE_EQ(transfers.at_best({8, 1}, 300, 20), 1 + 3);
  EXPECT_DOUBLE_EQ(transfers.at_best({4, 4}, 0, 100), 1 + 10);
  EXPECT_DOUBLE_EQ(transfers.message(1, 3, 100), 1);
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 100), 3 + 10);
}

// A group that lies across a border of nodes has fewer members near it, down to the common divisor.
TEST(Transfers, KnowGroupsThatCrossABorder) {
  EXPECT_EQ(members_near({8, 1}, 8, 24), 8);
  EXPECT_EQ(members_near({24, 1}, 8, 24), 8);
  EXPECT_EQ(members_near({6, 1}, 8, 24), 2);   // 6, 7 | 8 to 11
  EXPECT_EQ(members_near({12, 1}, 8, 24), 4);  // 0 to 7 | 8 to 11
  EXPECT_EQ(members_near({3, 1}, 8, 24), 1);   // 6, 7 | 8 and 15 | 16, 17
  EXPECT_EQ(members_near({6, 2}, 8, 24), 2);   // 0, 2, 4, 6 | 8, 10
  EXPECT_EQ(members_near({2, 3}, 8, 24), 1);   // 6 | 9
  EXPECT_EQ(members_near({4, 16}, 8, 64), 1);
  EXPECT_EQ(members_near({3, 1}, 8, 6), 3);  // one node holds all
  PlatformProfile p = shipped_profile("h200x8");
  p.levels = {{"near", 8, {0, 100}, {0, 100}, {0, 100}},
              {"rack", 32, {1, 10}, {1, 10}, {1, 10}},
              {"far", 4096, {2, 1}, {2, 1}, {2, 1}}};
  const Transfers transfers(p, 24);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 800), 7);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({6, 1}, 600),
                   1 + 40);  // four of six members over the rack's links, none farther
  EXPECT_DOUBLE_EQ(transfers.all_to_all({24, 1}, 2400), 1 + 160);
  EXPECT_DOUBLE_EQ(transfers.all_to_all({3, 8}, 300), 1 + 20);
}

// A rate is that of the bytes which leave a rank over the level.
TEST(Transfers, TakeTheRateOfTheirSize) {
  PlatformProfile p = shipped_profile("h200x8");
  const LinkCost cost{1, 40, {{50, 10}, {200, 40}}};
  p.levels = {{"near", 4, {0, 1e6}, {0, 1e6}, {0, 1e6}}, {"far", 64, cost, cost, cost}};
  const Transfers transfers(p, 64);
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 20), 1 + 2);        // as the smallest known
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 100), 1 + 4);       // between two, by the logarithm
  EXPECT_DOUBLE_EQ(transfers.message(3, 4, 800), 1 + 20);      // as the largest
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 100), 1 + 5);  // 50 stay near
  EXPECT_DOUBLE_EQ(transfers.all_to_all({8, 1}, 200), 1 + 4);
  EXPECT_DOUBLE_EQ(transfers.ring({8, 1}, 800 / 7.0 * 4, 1), 1 + 4);  // 400 around, four members share them
}

// Sums for owners: by the ring, unless they were measured, in groups of any shape.
TEST(Transfers, OfOwnersAreMeasuredOnes) {
  PlatformProfile p = shipped_profile("h200x8");
  const auto cost = [](double latency, double rate) { return LinkCost{latency, rate}; };
  p.levels = {{"near", 4, cost(0, 100), cost(0, 100), cost(0, 100)}, {"far", 64, cost(0, 1), cost(0, 1), cost(0, 1)}};
  ASSERT_TRUE(p.overlaps_gradient_sums);
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({1, 1}, 100), 0);
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({4, 1}, 100), 1);
  p.overlaps_gradient_sums = false;
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({4, 1}, 100), 1.5);
  p.levels[0].owner = cost(1, 50);
  p.levels[0].groups = {{2, 1, cost(0, 100), cost(0, 100), cost(1, 25)}, {2, 2, cost(0, 100), cost(0, 100)}};
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({4, 1}, 100), 1 + 2);
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({2, 1}, 100), 1 + 4);
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({2, 2}, 100), 1);
  p.levels[1].owner = cost(3, 5);
  EXPECT_DOUBLE_EQ(Transfers(p, 64).owner({8, 1}, 100), 3 + 20);
}

// The shape that is most alike: in members, then in distance; the level itself is one too.
TEST(Transfers, TakeTheCostsOfTheGroupMostAlike) {
  PlatformProfile p = shipped_profile("h200x8");
  const auto cost = [](double latency) { return LinkCost{latency, 1e30}; };
  p.levels = {
      {"near", 8, cost(1), cost(2), cost(3),
       std::vector<GroupCosts>{{2, 1, cost(10), cost(20)}, {2, 4, cost(11), cost(21)}, {4, 1, cost(12), cost(22)}}},
      {"far", 512, cost(4), cost(5), cost(6), std::vector<GroupCosts>{{64, 8, cost(13), cost(23)}}}};
  const Transfers transfers(p, 64);
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
