// Slices of experts, as moe.transport = "gather_tokens" computes with: widths, parts of tensors, rows of the byte
// table.
#include <algorithm>

#include "layout/helpers.h"
#include "layout/tensor_slice.h"

namespace mw::test {
namespace {

using Widths = std::vector<int64_t>;

RunSpec slicing_run(int64_t ep, const char* shares = "") {
  RunSpec run = small_run();
  run.moe.transport = "gather_tokens";
  run.mesh.ep = ep;
  run.mesh.width_shares = shares;
  return run;
}

TEST(ExpertSlices, HaveWidthsInUnitsOf128Or64WherePossible) {
  EXPECT_EQ(expert_widths(slicing_run(3), 768, 3), (Widths{256, 256, 256}));
  EXPECT_EQ(expert_widths(slicing_run(5), 768, 5), (Widths{192, 192, 128, 128, 128}));
  EXPECT_EQ(expert_widths(slicing_run(2, "2,3"), 768, 2), (Widths{320, 448}));
  EXPECT_EQ(expert_widths(slicing_run(2, "1,99"), 768, 2), (Widths{64, 704}));
  EXPECT_EQ(expert_widths(slicing_run(2, "39,25"), 4096, 2), (Widths{2560, 1536}));
  EXPECT_EQ(expert_widths(slicing_run(2, "39,25"), 1792, 2), (Widths{1088, 704}));  // equal shares: less than 8 x 128
  EXPECT_EQ(expert_widths(slicing_run(8), 10752, 8), Widths(8, 1344));              // 10.5 x 128
  EXPECT_EQ(expert_widths(slicing_run(3), 128, 3), (Widths{43, 43, 42}));           // 64 for two ranks only
  EXPECT_EQ(expert_widths(slicing_run(2), 100, 2), (Widths{50, 50}));
  EXPECT_EQ(expert_widths(slicing_run(2, "3,1"), 5, 2), (Widths{4, 1}));
  EXPECT_EQ(expert_widths(slicing_run(1), 7, 1), (Widths{7}));
}

TEST(ExpertSlices, AreRefusedWhereTheyCannotBe) {
  const auto refuse = [](RunSpec run, int64_t width, const char* why, SharedPlacements placements = nullptr) {
    NativeModel native = small_native();
    native.expert_width = width;
    const auto error =
        refusal_of([&] { make_plan(build_native_model(native), run, 4, 0, {}, placements); }, {Exit::config}, why);
    ASSERT_TRUE(error) << why;
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse(slicing_run(4), 3, "mesh.ep = 4 ranks cannot share experts of width 3");
  refuse(slicing_run(4, "3,1"), 20, "has 2 shares, but mesh.ep = 4");
  refuse(slicing_run(2, "3,x"), 20, "mesh.width_shares = \"3,x\" is not a comma-separated list");
  RunSpec whole = slicing_run(2, "3,1");
  whole.moe.transport = "auto";
  refuse(whole, 20, "no layer has slices of experts");
  RunSpec shared = slicing_run(2);
  shared.mesh.expert_shares = "3,1";
  refuse(shared, 20, "needs a layer that sends rows");
  shared.mesh.ep = 1;
  shared.moe.transport = "auto";
  refuse(shared, 20, "needs a layer that sends rows");
  shared.moe.transport = "flat";
  refuse(shared, 20, "has 2 shares, but mesh.ep = 1");
  RunSpec ted = slicing_run(2);
  ted.mesh.tp = 2;
  ted.moe.tp_mode = MoeTpMode::ted;
  refuse(ted, 20, "both shard the width of experts");
  const ModelSpec model = build_native_model(small_native());
  Placements placements = make_block_placements(model, 2);
  refuse(slicing_run(2), 20, "has whole experts", std::make_shared<Placements>(placements));
  placements.layers[1] = make_sliced_placement(6, {12, 8});
  RunSpec flat = slicing_run(2);
  flat.moe.transport = "flat";
  refuse(flat, 20, "has slices of experts", std::make_shared<Placements>(placements));
  EXPECT_FALSE(can_share_width(slicing_run(4), 3, 4));
  EXPECT_FALSE(can_share_width(slicing_run(4, "3,1"), 20, 4));
  EXPECT_TRUE(can_share_width(slicing_run(2, "3,1"), 20, 2));
}

// Of every expert tensor each element is on one rank of the group.
TEST(ExpertSlices, CoverEveryExpertOnce) {
  for (const char* shares : {"", "5,1,2,1"})
    for (const int64_t tp : {1, 2}) {
      RunSpec run = slicing_run(4, shares);
      run.mesh.tp = tp;
      const ModelSpec model = build_native_model(small_native());
      std::map<std::string, std::vector<int>> seen;
      for (int rank = 0; rank < 4; ++rank) {
        const Plan plan = make_plan(model, run, 4, rank, {});
        for (const ParamRow& row : plan.params) {
          if (!row.expert) continue;
          const std::vector<ExpertPlacement>& placements = plan.placements->layers;
          const LocalParam local = local_param(row, model, placements, plan.mesh, plan.coords);
          EXPECT_EQ(local.replicas, Replicas::edp);
          EXPECT_EQ(local.matrices, 6);
          EXPECT_EQ(local.matrices * local.n * local.k, local.numel()) << row.name;
          EXPECT_LE(local.numel(), 6 * widest_entry(row, model, placements, plan.mesh)) << row.name;
          std::vector<int>& of_row = seen[row.name];
          of_row.resize(static_cast<size_t>(row.numel()));
          for (const HeldSlice& held : held_slices(row.shape, local.pieces, {0, local.numel()}))
            for_each_shared_run(row.shape, whole_tensor(row.shape), held.slice,
                                [&](int64_t at, int64_t, int64_t count) {
                                  for (int64_t i = 0; i < count; ++i) ++of_row[static_cast<size_t>(at + i)];
                                });
        }
      }
      EXPECT_EQ(seen.size(), 2u);
      for (const auto& [name, counts] : seen)
        EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), std::ssize(counts)) << name << " shares " << shares;
    }
}

// S tokens of four ranks, each with K choices; nothing grows with the load.
TEST(ExpertSlices, HaveExactRowsOfTheByteTable) {
  RunSpec run = slicing_run(4, "5,2,2,1");  // 10, 4, 4 and 2 features of 20
  run.train.dtype = DType::bf16;
  const int64_t d = 48, k = 3, t = 16, s = 4 * t;
  const auto rounded = [](int64_t n) { return (n + 63) / 64 * 64; };
  for (const int rank : {0, 1, 3}) {
    const Plan plan = small_plan(run, 4, rank);
    ASSERT_EQ(plan.batch.tokens(), t);
    const int64_t f = rank == 0 ? 10 : rank == 1 ? 4 : 2;
    const auto bytes = [&](const std::string& name) { return row_of(plan.activation_rows, name).bytes(); };
    EXPECT_EQ(bytes("act.1.h"), rounded(2 * 2 * f * s * k));
    EXPECT_EQ(bytes("act.1.gathered"), rounded(2 * d * s));
    for (const char* name : {"tokens", "rows", "weights"})
      EXPECT_EQ(bytes(fmt::format("act.1.gathered_{}", name)), rounded(4 * s * k)) << name;
    EXPECT_EQ(bytes("work.expert_a"), rounded(2 * f * s * k));
    EXPECT_EQ(bytes("work.expert_y"), rounded(2 * d * s * k));
    EXPECT_EQ(bytes("exchange.choices"), rounded(4 * t * k));
    for (const char* name : {"token_choices", "token_weights", "leads", "part_weights"})
      EXPECT_EQ(bytes(fmt::format("exchange.{}", name)), rounded(4 * s * k)) << name;
    for (const char* name : {"sums", "parts"})
      EXPECT_EQ(bytes(fmt::format("exchange.{}", name)), rounded(2 * d * s)) << name;
    EXPECT_EQ(bytes("exchange.part_order"), rounded(4 * s));
    EXPECT_EQ(summarise(all_rows(plan)).routed_max, 0);
  }
  for (const int64_t chunks : {2, 3, 9}) {  // outputs of two ranks' tokens at a time, of two, of one
    run.moe.row_chunks = chunks;
    EXPECT_EQ(row_of(small_plan(run, 4, 1).activation_rows, "work.expert_y").bytes(),
              rounded(2 * d * (chunks == 9 ? t : 2 * t) * k));
  }
  run.recompute = Recompute::moe;
  const Plan plan = small_plan(run, 4, 0);
  EXPECT_EQ(row_of(plan.activation_rows, "recomputed.gathered").bytes(), rounded(2 * d * s));
}

TEST(ExpertSlices, MayBeOfFewerExpertsThanRanks) {
  NativeModel native = small_native();
  native.experts = native.top_k = 3;
  const ModelSpec model = build_native_model(native);
  EXPECT_EQ(row_of(make_plan(model, slicing_run(4), 4, 3, {}).parameter_rows, "param.layers.1.moe.w_up").shape,
            (std::vector<int64_t>{3, 2, 5, 48}));
  RunSpec flat = slicing_run(4);
  flat.moe.transport = "flat";
  EXPECT_TRUE(refusal_of([&] { make_plan(model, flat, 4, 3, {}); }));
}

TEST(ExpertSlices, MayBeOfSomeLayers) {
  NativeModel native = small_native();
  native.layers = 3;
  RunSpec run = slicing_run(2, "1,3");
  run.moe.transport = "flat,gather_tokens";
  const Plan plan = make_plan(build_native_model(native), run, 2, 1, {});
  EXPECT_EQ(row_of(plan.parameter_rows, "param.layers.1.moe.w_up").shape, (std::vector<int64_t>{3, 2, 20, 48}));
  EXPECT_EQ(row_of(plan.parameter_rows, "param.layers.2.moe.w_up").shape, (std::vector<int64_t>{6, 2, 15, 48}));
  EXPECT_EQ(row_of(plan.parameter_rows, "param.layers.2.moe.w_down").shape, (std::vector<int64_t>{6, 48, 15}));
}

}  // namespace
}  // namespace mw::test
