// Tensor-sharded experts (TED): the mesh, what ranks hold, and what it costs beside sequence-sharded MoE blocks.
#include <fmt/format.h>

#include <set>

#include "layout/helpers.h"
#include "layout/tensor_slice.h"

namespace mw::test {
namespace {

Mesh ted_mesh(int world, int pp, int tp, int ep, RankPlacement placement = RankPlacement::ep_first) {
  MeshSpec spec;
  spec.pp = pp;
  spec.tp = tp;
  spec.ep = ep;
  spec.placement = placement;
  return make_mesh(spec, world, MoeTpMode::ted);
}

TEST(Ted, ExpertGroupsHoldTheSameShareOfWidth) {
  for (const RankPlacement placement : {RankPlacement::ep_first, RankPlacement::dp_first}) {
    const Mesh mesh = ted_mesh(16, 2, 2, 2, placement);
    EXPECT_EQ(mesh.dp, 4);
    EXPECT_EQ(mesh.edp, 2);
    std::set<std::tuple<int, int, int, int>> places;
    for (int rank = 0; rank < mesh.world; ++rank) {
      const MeshCoords own = coords_of(mesh, rank);
      places.emplace(own.pp, own.ep, own.edp, own.tp);
      for (const auto& [axis, size] : {std::pair(MeshAxis::ep, mesh.ep), std::pair(MeshAxis::edp, mesh.edp)}) {
        const std::vector<int> group = group_of(mesh, axis, rank);
        ASSERT_EQ(std::ssize(group), size);
        for (const int member : group) EXPECT_EQ(coords_of(mesh, member).tp, own.tp);
      }
    }
    EXPECT_EQ(std::ssize(places), mesh.world);
  }
  EXPECT_EQ(group_of(ted_mesh(8, 1, 2, 2), MeshAxis::ep, 5), (std::vector<int>{5, 7}));
  EXPECT_EQ(group_of(ted_mesh(8, 1, 2, 2, RankPlacement::dp_first), MeshAxis::ep, 5), (std::vector<int>{1, 5}));
  EXPECT_EQ(describe(ted_mesh(8, 1, 2, 2)), "8 ranks: dp 4, tp 2, ep 2 x edp 2 (ep-first, experts cut over tp)");
  EXPECT_FALSE(ted_mesh(4, 1, 1, 2).ted);  // nothing to cut
}

TEST(Ted, RefusesWhatCannotBeCut) {
  const auto refuse = [](int ep, int64_t width, const char* why) {
    RunSpec run = small_run();
    run.moe.tp_mode = MoeTpMode::ted;
    run.mesh.tp = 2;
    run.mesh.ep = ep;
    NativeModel native = small_native();
    native.expert_width = width;
    const auto error = refusal_of([&] { make_plan(build_native_model(native), run, 4, 0, {}); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse(4, 20, "mesh.ep = 4 does not divide the 2 data-parallel ranks");
  refuse(2, 1, "mesh.tp = 2 cannot shard experts of width 1");
}

// Of every weight of the MoE block each element is on one rank of EP x TP; routers and norms on all.
TEST(Ted, SlicesCoverEveryExpertOnce) {
  NativeModel native = small_native();
  native.expert_width = 7;  // uneven, as are the 6 experts over 4 ranks
  native.shared_experts = 1;
  const ModelSpec model = build_native_model(native);
  const std::vector<ExpertPlacement> placements = {{}, make_block_placement(native.experts, 4)};
  for (const int tp : {2, 3}) {
    const Mesh mesh = ted_mesh(4 * tp, 1, tp, 4);
    for (const ParamRow& row : param_table(model)) {
      if (row.name.find(".moe.w_") == std::string::npos && row.name.find(".shared.") == std::string::npos) continue;
      std::vector<int> seen(static_cast<size_t>(row.numel()));
      for (int rank = 0; rank < mesh.world; ++rank) {
        const MeshCoords coords = coords_of(mesh, rank);
        const LocalParam local = local_param(row, model, placements, mesh, coords);
        EXPECT_EQ(local.replicas, row.expert ? Replicas::edp : Replicas::dp) << row.name;
        EXPECT_EQ(local.matrices * local.n * local.k, local.numel()) << row.name;
        EXPECT_LE(local.numel(), widest_entry(row, model, placements, mesh) * local.shape[0]) << row.name;
        if (!row.expert && coords.dp > 0) continue;  // replicas
        for (const HeldSlice& held : held_slices(row.shape, local.pieces, {0, local.numel()}))
          for_each_shared_run(row.shape, whole_tensor(row.shape), held.slice,
                              [&](int64_t at, int64_t own, int64_t count) {
                                EXPECT_LE(held.at + own + count, local.numel());
                                for (int64_t i = 0; i < count; ++i) ++seen[static_cast<size_t>(at + i)];
                              });
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), row.numel()) << row.name << " tp " << tp;
    }
  }
}

// Parts of what is held, as owners of ZeRO have them: together they are the whole, wherever it is cut.
TEST(Ted, PartsOfASliceAreItsElements) {
  const std::vector<int64_t> shape = {5, 2, 6, 3};
  const std::vector<SlicePiece> pieces = {{0, 3, 0, 2, 2, 1, 4}, {0, 0, 2, 1, 2, 1, 4}};
  const int64_t elements = 3 * 2 * 4 * 3;
  const auto walk = [&](ElementRange range) {
    std::vector<int64_t> global(static_cast<size_t>(range.count));
    for (const HeldSlice& held : held_slices(shape, pieces, range))
      for_each_shared_run(shape, whole_tensor(shape), held.slice, [&](int64_t at, int64_t own, int64_t count) {
        for (int64_t i = 0; i < count; ++i) global[static_cast<size_t>(held.at + own + i)] = at + i;
      });
    return global;
  };
  const std::vector<int64_t> whole = walk({0, elements});
  for (int64_t e = 0, i = 0; e < 3; ++e)
    for (int64_t c = 0; c < 2; ++c)
      for (int64_t f = 1; f < 5; ++f)
        for (int64_t d = 0; d < 3; ++d, ++i)
          ASSERT_EQ(whole[static_cast<size_t>(i)], (((e < 2 ? 3 + e : 0) * 2 + c) * 6 + f) * 3 + d);
  for (int64_t cut = 0; cut <= elements; ++cut) {
    std::vector<int64_t> parts = walk({0, cut});
    const std::vector<int64_t> rest = walk({cut, elements - cut});
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_EQ(parts, whole) << cut;
  }
}

// X-MoE, appendix C.2: what sequence shards save of dispatched and combined rows, 4ckSH(G-1)/G bytes a layer, and what
// whole experts cost more than cut ones, 8*F*H*E/EP*(G-1)/G with gradients of 2 bytes; those of 4 bytes make it 12. Two
// matrices an expert, c = 1; fully sharded optimizer states are the same.
struct TedCase {
  int64_t g, ep, k, h, f, experts, tokens;
  DType gradients;
};

void expect_formulas(const TedCase& c) {
  SCOPED_TRACE(fmt::format("G {} EP {} k {} H {} F {} E {} S {} {}", c.g, c.ep, c.k, c.h, c.f, c.experts, c.tokens,
                           word_of(c.gradients)));
  NativeModel native;
  native.vocab = 64;
  native.width = c.h;
  native.layers = 1;
  native.heads = native.kv_heads = 4;
  native.head_dim = 16;
  native.experts = c.experts;
  native.top_k = c.k;
  native.expert_width = c.f;
  native.activation = Activation::gelu;
  native.dense_layers = native.shared_experts = 0;
  Platform platform;
  platform.native_bf16 = platform.one_packed_form = true;
  const auto plan_of = [&](MoeTpMode mode) {
    RunSpec run;
    run.train.seq_len = c.tokens;
    run.train.global_batch = c.ep;
    run.train.micro_batches = 1;
    run.train.dtype = DType::bf16;
    run.expert_gradients = c.gradients;
    run.mesh.tp = c.g;
    run.mesh.ep = c.ep;
    run.mesh.zero = 1;
    run.moe.transport = "flat";
    run.moe.tp_mode = mode;
    return make_plan(build_native_model(native), run, static_cast<int>(c.g * c.ep), 0, platform);
  };
  const Plan ssmb = plan_of(MoeTpMode::ssmb), ted = plan_of(MoeTpMode::ted);
  EXPECT_EQ(ssmb.mesh.edp, c.g);
  EXPECT_EQ(ted.mesh.edp, 1);
  const auto rows = [&](const Plan& plan) {
    int64_t bytes = 0;
    for (const ByteRow& row : plan.activation_rows)
      if (row.name == "act.0.received" || row.name == "work.expert_y") bytes += row.mean_rows * c.h * 2;
    return bytes;
  };
  EXPECT_EQ(rows(ted) - rows(ssmb), 4 * c.k * c.tokens * c.h * (c.g - 1) / c.g);
  const auto states = [&](const Plan& plan, std::initializer_list<ByteKind> kinds) {
    int64_t bytes = 0;
    for (const ByteRow& row : plan.parameter_rows)
      if (row.name.find(".moe.w_") != std::string::npos && std::count(kinds.begin(), kinds.end(), row.kind) > 0)
        bytes += row.bytes();
    return bytes;
  };
  const int64_t bytes = c.gradients == DType::bf16 ? 8 : 12;
  EXPECT_EQ(states(ssmb, {ByteKind::gradient, ByteKind::packed}) - states(ted, {ByteKind::gradient, ByteKind::packed}),
            c.experts / c.ep * bytes * c.f * c.h * (c.g - 1) / c.g);
  EXPECT_EQ(states(ssmb, {ByteKind::master, ByteKind::moment}), states(ted, {ByteKind::master, ByteKind::moment}));
}

TEST(Ted, CostsWhatTheFormulasSay) {
  for (const TedCase& c :
       {TedCase{4, 2, 4, 64, 256, 16, 256, DType::f32}, TedCase{4, 2, 4, 64, 256, 16, 256, DType::bf16},
        TedCase{2, 1, 2, 128, 512, 8, 512, DType::bf16}, TedCase{2, 8, 6, 192, 128, 64, 128, DType::f32},
        TedCase{4, 16, 8, 256, 512, 32, 1024, DType::bf16}})
    expect_formulas(c);
}

}  // namespace
}  // namespace mw::test
