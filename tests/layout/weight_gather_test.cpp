#include "layout/weight_gather.h"

#include <algorithm>
#include <numeric>

#include "layout/helpers.h"

namespace mw::test {
namespace {

ExpertPlacement scattered(int64_t experts, int ep) {
  ExpertPlacement placement;
  placement.ep = ep;
  std::vector<int> slots(static_cast<size_t>(ep));
  for (int64_t e = 0; e < experts; ++e) {
    const auto rank = static_cast<int>(e * e % ep);
    placement.homes.push_back({ExpertHome{rank, slots[static_cast<size_t>(rank)]++}});
  }
  return placement;
}

TEST(WeightGather, PiecesHoldEveryExpertOnceAndSharesOfEveryRank) {
  for (const int64_t experts : {1, 2, 7, 16, 61})
    for (const int ep : {1, 2, 3, 8})
      for (const bool blocks : {true, false})
        for (const int64_t pieces : {1, 2, 3, 7, 1024}) {
          if (ep > experts) continue;
          const ExpertPlacement placement = blocks ? make_block_placement(experts, ep) : scattered(experts, ep);
          const WeightGather gather = make_weight_gather(placement, pieces, {});
          int64_t most = 0;
          std::vector<std::vector<int>> left;  // experts that no piece had so far
          for (int rank = 0; rank < ep; ++rank) {
            left.push_back(placement.experts_of(rank));
            most = std::max<int64_t>(most, std::ssize(left.back()));
          }
          EXPECT_EQ(gather.pieces(), std::min(pieces, most));
          auto expert = gather.experts.begin();
          for (int64_t piece = 0; piece < gather.pieces(); ++piece) {
            EXPECT_LE(gather.experts_in(piece), gather.largest());
            for (size_t rank = 0; rank < left.size(); ++rank) {
              const int64_t count = gather.counts[static_cast<size_t>(piece)][rank];
              const int64_t own = std::ssize(placement.experts_of(static_cast<int>(rank)));
              EXPECT_LE(std::abs(count - own / gather.pieces()), 1);
              // Neighbouring slots, in their order.
              ASSERT_TRUE(std::equal(expert, expert + count, left[rank].begin(), left[rank].begin() + count));
              left[rank].erase(left[rank].begin(), left[rank].begin() + count);
              expert += count;
            }
          }
          EXPECT_EQ(expert, gather.experts.end());
          for (const std::vector<int>& rest : left) EXPECT_TRUE(rest.empty());
          const std::vector<int32_t> position = gather.position_of_expert();
          for (size_t i = 0; i < gather.experts.size(); ++i)
            EXPECT_EQ(position[static_cast<size_t>(gather.experts[i])], static_cast<int32_t>(i));
        }
}

RunSpec gathering_run(DType dtype) {
  RunSpec run = small_run();
  run.native = small_native();
  run.native.experts = 8;
  run.train.dtype = dtype;
  run.moe.transport = "gather_weights";
  run.mesh.ep = 2;
  return run;
}

int64_t row_bytes(const Plan& plan, const std::string& name) {
  for (const ByteRow& row : plan.activation_rows)
    if (row.name == name) return row.bytes();
  return 0;
}

// Two pieces of weights, or all if there are fewer, in the forms that the fullest pass reads, and one of gradients;
// nothing grows with the load.
TEST(WeightGather, TakesWhatTwoPiecesNeed) {
  const auto rounded = [](int64_t n) { return (n + 63) / 64 * 64; };
  for (const int64_t pieces : {1, 2, 4}) {
    RunSpec run = gathering_run(DType::f32);
    run.moe.row_chunks = pieces;
    run.native.layers = run.native.dense_layers + 1;
    const ModelSpec model = build_native_model(run.native);
    const LayerSpec& layer = model.layers.back();
    const int64_t up = halves_of(layer.activation) * layer.moe.width * model.width,
                  down = model.width * layer.moe.width, experts = layer.moe.experts / pieces;
    ASSERT_EQ(layer.moe.experts % (2 * pieces), 0);
    const Plan plan = make_plan(model, run, 2, 1, {});
    EXPECT_EQ(row_bytes(plan, "cache.weights"), std::min<int64_t>(2, pieces) * rounded(4 * experts * (up + down)));
    EXPECT_EQ(row_bytes(plan, "cache.gradients"), rounded(rounded(4 * experts * up) + 4 * experts * down));
    EXPECT_EQ(summarise(all_rows(plan)).routed_max, 0);
  }
  const auto weights = [&](Recompute recompute, const Platform& platform) {
    RunSpec run = gathering_run(DType::bf16);
    run.recompute = recompute;
    run.moe.weight_slots = 1;
    return row_bytes(make_plan(build_native_model(run.native), run, 2, 0, platform), "cache.weights");
  };
  const Platform two_forms{true, false}, one_form{true, true};
  EXPECT_EQ(weights(Recompute::none, two_forms), weights(Recompute::none, one_form));
  EXPECT_GT(weights(Recompute::selective, two_forms),
            weights(Recompute::none, two_forms));  // backward reads both forms of up
  EXPECT_EQ(weights(Recompute::selective, one_form), weights(Recompute::none, one_form));
}

TEST(WeightGather, KeepsTheStatesOfFlat) {
  RunSpec run = gathering_run(DType::bf16);
  const ModelSpec model = build_native_model(run.native);
  const Plan gathers = make_plan(model, run, 4, 2, {});
  run.moe.transport = "flat";
  const Plan flat = make_plan(model, run, 4, 2, {});
  ASSERT_EQ(gathers.parameter_rows.size(), flat.parameter_rows.size());
  for (size_t i = 0; i < flat.parameter_rows.size(); ++i) {
    EXPECT_EQ(gathers.parameter_rows[i].name, flat.parameter_rows[i].name);
    EXPECT_EQ(gathers.parameter_rows[i].shape, flat.parameter_rows[i].shape);
  }
}

TEST(WeightGather, RefusesGradientsInBf16) {
  RunSpec run = gathering_run(DType::bf16);
  run.expert_gradients = DType::bf16;
  const auto error = refusal_of([&] { make_plan(build_native_model(run.native), run, 2, 0, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Exit::unsupported);
  EXPECT_TRUE(contains(error->what(), "memory.expert_gradients = \"bf16\"")) << error->what();
  EXPECT_TRUE(contains(error->hint(), "memory.expert_gradients = \"fp32\"")) << error->hint();
}

}  // namespace
}  // namespace mw::test
