// Tensor parallelism as numbers: blocks, heads, and the parts of parameters that ranks hold.
#include "layout/shards.h"

#include <algorithm>

#include "layout/helpers.h"

namespace mw::test {
namespace {

TEST(BlockOf, BlocksAreNeighboursAndCoverAll) {
  for (const int64_t n : {0, 1, 3, 7, 8, 64, 100})
    for (const int64_t parts : {1, 2, 3, 8}) {
      int64_t at = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Block block = block_of(n, parts, i);
        EXPECT_EQ(block.begin, at);
        EXPECT_LE(block.count, block_of(n, parts, 0).count);
        EXPECT_GE(block.count, n / parts);
        // Room for the block of n is room for that of any smaller number.
        EXPECT_LE(block_of(std::max<int64_t>(n - 1, 0), parts, i).count, block.count);
        at += block.count;
      }
      EXPECT_EQ(at, n);
    }
}

TEST(HeadShard, QueriesKeepTheirKeys) {
  struct Heads {
    int64_t heads, kv;
    int tp;
  };
  std::vector<Heads> cases = {{6, 6, 4}, {6, 3, 2}, {6, 2, 4}, {12, 6, 4}, {10, 5, 3}, {7, 1, 3}, {40, 8, 3}};
  for (const int64_t kv : {1, 2, 4, 8})
    for (const int tp : {1, 2, 4, 8}) cases.push_back({8, kv, tp});
  for (const auto& [heads, kv, tp] : cases) {
    AttentionSpec a;
    a.heads = heads;
    a.kv_heads = kv;
    int64_t at = 0;
    std::vector<int> holders(static_cast<size_t>(kv));
    for (int rank = 0; rank < tp; ++rank) {
      const HeadShard shard = head_shard(a, tp, rank);
      EXPECT_EQ(shard.heads.begin, at);
      at += shard.heads.count;
      EXPECT_GT(shard.heads.count, 0);
      EXPECT_LE(shard.heads.count, head_shard(a, tp, 0).heads.count);
      EXPECT_LE(shard.kv_heads.count, head_shard(a, tp, 0).kv_heads.count);
      if (heads % tp == 0 && (kv % tp == 0 || tp % kv == 0)) {
        EXPECT_EQ(shard.heads.count, heads / tp);
      }
      EXPECT_EQ(shard.shares_kv, kv < tp);
      const int64_t group = heads / kv, local_group = shard.heads.count / shard.kv_heads.count;
      EXPECT_EQ(shard.heads.count % shard.kv_heads.count, 0);
      for (int64_t h = 0; h < shard.heads.count; ++h)
        EXPECT_EQ((shard.heads.begin + h) / group, shard.kv_heads.begin + h / local_group) << kv << " " << tp;
      for (int64_t h = 0; h < shard.kv_heads.count; ++h) ++holders[static_cast<size_t>(shard.kv_heads.begin + h)];
    }
    EXPECT_EQ(at, heads);
    // Norms over the whole width count a key/value head as often as it is held, each alike.
    for (const int count : holders) EXPECT_EQ(count, kv < tp ? tp / kv : 1);
  }
}

Mesh mesh_of(int dp, int tp) {
  Mesh mesh;
  mesh.world = dp * tp;
  mesh.dp = dp;
  mesh.tp = tp;
  mesh.edp = dp * tp;
  return mesh;
}

// Every element of a weight is on one rank of TP, or all of it is on all of them.
TEST(LocalParam, SlicesOfARankAddUpToTheWeight) {
  for (const int64_t kv_heads : {2, 8}) {
    NativeModel native = small_native();
    native.heads = 8;
    native.kv_heads = kv_heads;
    native.dense_width = 70;  // not a multiple of 4
    native.qk_norm = QkNorm::full_width;
    const ModelSpec model = build_native_model(native);
    const std::vector<ExpertPlacement> placements = {{}, make_block_placement(native.experts, 1)};
    for (const int tp : {1, 2, 4})
      for (const ParamRow& row : param_table(model)) {
        int64_t elements = 0;
        Replicas replicas = Replicas::dp;
        for (int rank = 0; rank < tp; ++rank) {
          MeshCoords coords;
          coords.tp = rank;
          const LocalParam local = local_param(row, model, placements, mesh_of(1, tp), coords);
          elements += local.numel();
          replicas = local.replicas;
          EXPECT_EQ(local.matrices * local.n * local.k, local.numel()) << row.name;
        }
        const bool cut = replicas == Replicas::dp;
        EXPECT_EQ(elements, row.numel() * (cut ? 1 : tp)) << row.name << " tp " << tp;
        const bool is_kv = row.name.ends_with(".wk") || row.name.ends_with(".wv") || row.name.ends_with(".k_norm");
        Replicas expected = row.expert || tp == 1 ? replicas : Replicas::stage;
        if (tp > 1 && (row.name.ends_with(".wq") || row.name.ends_with(".wo") || row.name.ends_with(".q_norm") ||
                       row.name == "embed" || row.name == "head" || row.name.find(".ffn.") != std::string::npos ||
                       (is_kv && kv_heads >= tp)))
          expected = Replicas::dp;
        EXPECT_EQ(replicas, expected) << row.name << " tp " << tp;
        EXPECT_EQ(replicas == Replicas::edp, row.expert);
      }
  }
}

// Embedding and head are cut by rows of the vocabulary, whether TP divides it or not; what is left has no rows.
TEST(LocalParam, VocabularyIsDealtOut) {
  NativeModel native = small_native();
  native.heads = native.kv_heads = 8;
  for (const int64_t vocab : {1, 5, 29, 64, 8191, 8192, 50257, 151936}) {
    const int64_t unit = vocab >= 8 * 1024 ? 64 : 1, most = ((vocab + unit - 1) / unit + 7) / 8 * unit;
    native.vocab = vocab;
    const ModelSpec model = build_native_model(native);
    const std::vector<ExpertPlacement> placements = {{}, make_block_placement(native.experts, 1)};
    for (const ParamRow& row : param_table(model)) {
      if (row.name != "embed" && row.name != "head") continue;
      int64_t at = 0;
      for (int rank = 0; rank < 8; ++rank) {
        MeshCoords coords;
        coords.tp = rank;
        const LocalParam local = local_param(row, model, placements, mesh_of(2, 8), coords);
        ASSERT_EQ(local.pieces.size(), 1u);
        EXPECT_EQ(local.pieces[0], (SlicePiece{0, at, 0, local.shape[0]})) << row.name << " of " << vocab;
        EXPECT_EQ(local.shape[1], model.width);
        EXPECT_EQ(local.n, local.shape[0]);
        EXPECT_EQ(local.replicas, Replicas::dp);
        EXPECT_EQ((vocab_part(model, 8, rank)), (Block{at, local.n}));
        EXPECT_EQ(at % unit, 0);
        EXPECT_LE(local.n, rank == 0 ? most : at / rank) << vocab;
        EXPECT_GT(local.n, most - 2 * unit) << vocab << " rank " << rank;
        at += local.n;
      }
      EXPECT_EQ(at, vocab);
    }
  }
}

TEST(TensorParallel, RefusesWhatCannotBeDealtOut) {
  const auto refuse = [](auto change, int tp, Exit code, const char* why) {
    NativeModel native = small_native();
    RunSpec run = small_run();
    change(native, run);
    run.mesh.tp = tp;
    const auto error = refusal_of([&] { make_plan(build_native_model(native), run, tp, 0, Platform{}); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), code);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse([](NativeModel&, RunSpec&) {}, 3, Exit::config, "mesh.tp = 3 ranks cannot share 2 key/value heads evenly");
  refuse([](NativeModel&, RunSpec&) {}, 8, Exit::config, "mesh.tp = 8 is more than the 4 attention heads");
  refuse(
      [](NativeModel& n, RunSpec&) {
        n.heads = 12;
        n.kv_heads = 6;
        n.head_dim = 8;
      },
      8, Exit::config, "mesh.tp = 8 ranks cannot share 6 key/value heads evenly");
  refuse(
      [](NativeModel&, RunSpec& r) {
        r.moe.capacity_factor = 1;
        r.train.micro_batches = 8;
      },
      2, Exit::config, "moe.capacity_domain = \"sequence\" needs whole sequences on a rank");
}

}  // namespace
}  // namespace mw::test
