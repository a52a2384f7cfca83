// Blocks of gradients and how ZeRO cuts them; the rows of the byte table that follow.
#include "layout/gradient_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "layout/helpers.h"

namespace mw::test {
namespace {

ParamRow row_named(std::string name, bool expert, bool trained = true) {
  ParamRow row;
  row.name = std::move(name);
  row.expert = expert;
  row.trained = trained;
  return row;
}

const std::vector<ParamRow> kRows = {row_named("a", false), row_named("b", false, false), row_named("c", true),
                                     row_named("d", false), row_named("e", true)};
std::vector<LocalParam> locals() {
  std::vector<LocalParam> list;
  for (const int64_t elements : {100, 7, 33, 1, 0}) {
    LocalParam local;
    local.shape = {elements};
    local.replicas = kRows[list.size()].expert ? Replicas::edp : Replicas::dp;
    list.push_back(local);
  }
  return list;
}

Mesh mesh_of(int dp, int edp) {
  Mesh mesh;
  mesh.world = mesh.dp = dp;
  mesh.edp = edp;
  mesh.ep = dp / edp;
  return mesh;
}

RunSpec run_of(int64_t zero, DType expert_gradients = DType::f32) {
  RunSpec run;
  run.mesh.zero = zero;
  run.expert_gradients = expert_gradients;
  return run;
}

TEST(GradientBlocks, LieBackToBackByKind) {
  const GradientBlocks blocks = make_gradient_blocks(kRows, locals(), mesh_of(4, 2), {}, run_of(0));
  EXPECT_EQ(blocks.begins, (std::vector<int64_t>{0, 0, 0, 112, 48}));
  EXPECT_EQ(blocks.of(Replicas::dp).cuts, (std::vector<int64_t>{0, 128}));
  EXPECT_EQ(blocks.of(Replicas::edp).cuts, (std::vector<int64_t>{0, 48}));
  EXPECT_FALSE(blocks.of(Replicas::dp).is_cut() || blocks.of(Replicas::edp).is_cut());
  EXPECT_EQ(blocks.of(Replicas::dp).own(112, 1), (ElementRange{0, 1}));
  EXPECT_EQ(blocks.of(Replicas::edp).counts(0, 48), std::vector<int64_t>{48});
}

TEST(GradientBlocks, AreCutEvenlyAndOnBorders) {
  for (const int dp : {2, 3, 4, 8, 64}) {
    int64_t dense = 0;
    for (int rank = 0; rank < dp; ++rank) {
      MeshCoords coords;
      coords.dp = coords.edp = rank;
      const GradientBlocks blocks = make_gradient_blocks(kRows, locals(), mesh_of(dp, dp), coords, run_of(1));
      const std::vector<int64_t>& cuts = blocks.of(Replicas::dp).cuts;
      ASSERT_EQ(static_cast<int>(cuts.size()), dp + 1);
      EXPECT_EQ(cuts.front(), 0);
      EXPECT_EQ(cuts.back(), 128);
      EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
      for (size_t m = 0; m + 1 < cuts.size(); ++m) {
        EXPECT_EQ(cuts[m] % 16, 0);
        EXPECT_LE(cuts[m + 1] - cuts[m], (128 + dp - 1) / dp + 15);
      }
      // Everybody's parts of a piece, of which mine is one.
      const std::vector<int64_t> counts = blocks.of(Replicas::dp).counts(5, 90);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 90);
      const ElementRange own = blocks.of(Replicas::dp).own(5, 90);
      EXPECT_EQ(own.count, counts[static_cast<size_t>(rank)]);
      EXPECT_EQ(own.begin, std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}));
      dense += blocks.of(Replicas::dp).own(0, 128).count;
    }
    EXPECT_EQ(dense, 128);
  }
}

// Units are 64 bytes, whatever a gradient is kept in.
TEST(GradientBlocks, OfExpertsMayBeBf16) {
  const GradientBlocks blocks = make_gradient_blocks(kRows, locals(), mesh_of(8, 2), {}, run_of(1, DType::bf16));
  EXPECT_EQ(blocks.begins, (std::vector<int64_t>{0, 0, 0, 112, 64}));
  EXPECT_EQ(blocks.of(Replicas::edp).cuts, (std::vector<int64_t>{0, 32, 64}));
  EXPECT_EQ(blocks.of(Replicas::dp).cuts.at(1), 16);
  EXPECT_EQ(gradient_dtype(Replicas::edp, run_of(0, DType::bf16)), DType::bf16);
  EXPECT_EQ(gradient_dtype(Replicas::stage, run_of(0, DType::bf16)), DType::f32);
  EXPECT_EQ(sum_piece_elements(1000, 1000 * 28), 512);
  EXPECT_EQ(sum_piece_elements(1000, 1000), 128);
  EXPECT_EQ(sum_piece_elements(32, 32), 32);
}

TEST(GradientBlocks, OfOneReplicaAreNotCut) {
  const GradientBlocks blocks = make_gradient_blocks(kRows, locals(), mesh_of(4, 1), {}, run_of(1));
  EXPECT_TRUE(blocks.of(Replicas::dp).is_cut());
  EXPECT_FALSE(blocks.of(Replicas::edp).is_cut());
  error_of([&] { (void)blocks.of(Replicas::dp).counts(100, 29); }, Exit::internal);
}

TEST(GradientBlocks, LargeBlocksOfExpertsAreCutAtPieces) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t members : {2, 3, 7}) {
      const int64_t elements = members * ((int64_t{1} << 20) + 32), unit = 64 / size_of(dtype);
      EXPECT_EQ(cut_unit(Replicas::edp, elements, members, dtype), 4096);
      EXPECT_EQ(cut_unit(Replicas::edp, elements / 2, members, dtype), unit);
      EXPECT_EQ(cut_unit(Replicas::dp, elements, members, dtype), unit);
      for (int64_t m = 0; m < members; ++m) {
        EXPECT_EQ(cut_begin(elements, members, m, 4096) % 4096, 0);
        EXPECT_LT(std::abs(cut_begin(elements, members, m, 4096) - elements / members * m), 4096);
      }
      EXPECT_EQ(cut_begin(elements, members, members, 4096), elements);
    }
}

// What the ranks of one run keep of each parameter adds up to it: once where it is cut.
TEST(ByteTable, CutsMomentsOverReplicas) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int ep : {1, 2, 4}) {
      RunSpec run = small_run();
      run.train.dtype = dtype;
      run.mesh.ep = ep;
      run.mesh.zero = 1;
      std::map<std::string, int64_t> moments, masters;
      std::vector<ParamRow> params;
      for (int rank = 0; rank < 4; ++rank) {
        const Plan plan = small_plan(run, 4, rank);
        params = plan.params;
        for (const ByteRow& row : plan.parameter_rows) {
          const int64_t elements = std::accumulate(row.shape.begin(), row.shape.end(), int64_t{1}, std::multiplies<>());
          if (row.kind == ByteKind::moment) moments[row.name] += elements;
          if (row.kind == ByteKind::master) masters[row.name] += elements;
        }
      }
      for (const ParamRow& row : params) {
        const int copies = row.expert ? 4 / ep : 4;
        const bool cut = run.train.dtype == DType::bf16 && row.role == ParamRole::matrix;
        EXPECT_EQ(masters["param." + row.name], row.numel() * (cut ? 1 : copies)) << row.name << " " << word_of(dtype);
        if (!row.trained) continue;
        for (const char* kind : {"adam_m.", "adam_v."}) EXPECT_EQ(moments[kind + row.name], row.numel()) << row.name;
      }
    }
}

TEST(ByteTable, HoldsRoomForOneMatrixWherePackingNeedsItWhole) {
  const auto gathered = [](DType dtype, int64_t zero, int world, const Platform& platform) {
    RunSpec run = small_run();
    run.train.dtype = dtype;
    run.mesh.zero = zero;
    int64_t bytes = 0;
    for (const ByteRow& row : small_plan(run, world, 0, platform).parameter_rows)
      if (row.name == "zero.gathered") bytes += row.bytes();
    return bytes;
  };
  Platform cpu, gpu;
  cpu.native_bf16 = true;
  gpu.native_bf16 = gpu.one_packed_form = true;
  EXPECT_EQ(gathered(DType::bf16, 1, 4, cpu), 2 * 70 * 48 * 4);  // w_up of the dense layer
  EXPECT_EQ(gathered(DType::bf16, 1, 4, gpu), 2 * 70 * 48 * 4);  // sides that are no multiples of 64 are padded
  EXPECT_EQ(gathered(DType::bf16, 0, 4, cpu), 0);
  EXPECT_EQ(gathered(DType::bf16, 1, 1, cpu), 0);
  EXPECT_EQ(gathered(DType::f32, 1, 4, cpu), 0);
  RunSpec run = small_run();
  run.mesh.zero = 1;
  NativeModel even = small_native();
  even.vocab = 128;
  even.width = even.dense_width = even.expert_width = 64;
  even.kv_heads = 4;
  even.head_dim = 16;
  for (const ByteRow& row : make_plan(build_native_model(even), run, 4, 0, gpu).parameter_rows)
    EXPECT_NE(row.name, "zero.gathered");
}

}  // namespace
}  // namespace mw::test
