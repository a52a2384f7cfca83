#include "layout/placement.h"

#include <algorithm>

#include "layout/helpers.h"

namespace mw::test {
namespace {

TEST(Placement, BlocksMayBeUneven) {
  const ExpertPlacement placement = make_block_placement(std::vector<int64_t>{1, 4, 2});
  EXPECT_NO_THROW(validate(placement));
  EXPECT_EQ(placement.experts_of(1), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(placement.parts(), (std::vector<int64_t>{1, 4, 2}));
  EXPECT_EQ(placement.widest(), 1);
  EXPECT_EQ(make_block_placement(7, 3), make_block_placement(std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(make_block_placement(7, 3).widest(), 0);
  EXPECT_EQ(make_sliced_placement(7, {2, 3, 3}).widest(), 1);
}

TEST(Placement, BlocksAreUnevenWhenTheyMust) {
  for (int64_t experts = 1; experts <= 20; ++experts)
    for (int ep = 1; ep <= experts; ++ep) {
      const ExpertPlacement p = make_block_placement(experts, ep);
      EXPECT_NO_THROW(validate(p));
      EXPECT_EQ(p.experts(), experts);
      EXPECT_FALSE(p.has_replicas());
      const std::vector<int64_t> offsets = p.rank_offsets();
      ASSERT_EQ(offsets.size(), static_cast<size_t>(ep) + 1);
      EXPECT_EQ(offsets.front(), 0);
      EXPECT_EQ(offsets.back(), experts);
      for (int rank = 0; rank < ep; ++rank) {
        const std::vector<int> own = p.experts_of(rank);
        EXPECT_EQ(static_cast<int64_t>(own.size()), experts / ep + (rank < experts % ep ? 1 : 0));
        EXPECT_EQ(offsets[static_cast<size_t>(rank) + 1] - offsets[static_cast<size_t>(rank)],
                  static_cast<int64_t>(own.size()));
        // Consecutive experts are one piece, from the first slot.
        EXPECT_EQ(expert_pieces(p, rank),
                  (std::vector<SlicePiece>{{0, own.front(), 0, static_cast<int64_t>(own.size())}}));
      }
      std::vector<int32_t> identity;
      for (int e = 0; e < experts; ++e) identity.push_back(e);
      EXPECT_EQ(p.position_of_expert(), identity);
    }
  const auto error = refusal_of([] { make_block_placement(4, 5); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Exit::config);
  EXPECT_TRUE(contains(error->what(), "mesh.ep = 5") && contains(error->what(), "4 experts"));
}

// Six experts on three ranks: 2, 3 and 1 of them, out of order.
ExpertPlacement scattered() { return {3, {{{1, 1}}, {{0, 1}}, {{1, 0}}, {{0, 0}}, {{2, 0}}, {{1, 2}}}}; }

TEST(Placement, PositionsAreAPermutation) {
  const ExpertPlacement p = scattered();
  EXPECT_NO_THROW(validate(p));
  EXPECT_EQ(p.experts_of(0), (std::vector<int>{3, 1}));
  EXPECT_EQ(p.experts_of(1), (std::vector<int>{2, 0, 5}));
  EXPECT_EQ(p.experts_of(2), (std::vector<int>{4}));
  EXPECT_EQ(p.rank_offsets(), (std::vector<int64_t>{0, 2, 5, 6}));
  EXPECT_EQ(p.position_of_expert(), (std::vector<int32_t>{3, 1, 2, 0, 5, 4}));
  std::vector<int32_t> sorted = p.position_of_expert();
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Placement, PiecesCoverTheLocalExpertsInSlotOrder) {
  const ExpertPlacement p = scattered();
  EXPECT_EQ(expert_pieces(p, 0), (std::vector<SlicePiece>{{0, 3, 0, 1}, {0, 1, 1, 1}}));
  EXPECT_EQ(expert_pieces(p, 1), (std::vector<SlicePiece>{{0, 2, 0, 1}, {0, 0, 1, 1}, {0, 5, 2, 1}}));
  const ExpertPlacement runs = {2, {{{0, 2}}, {{0, 0}}, {{0, 1}}, {{1, 0}}, {{1, 1}}}};
  EXPECT_EQ(expert_pieces(runs, 0), (std::vector<SlicePiece>{{0, 1, 0, 2}, {0, 0, 2, 1}}));  // neighbours merged
  EXPECT_EQ(expert_pieces(runs, 1), (std::vector<SlicePiece>{{0, 3, 0, 2}}));
}

TEST(Placement, ReplicasLieBehindHomes) {
  const ExpertPlacement p = {2, {{{0, 0}, {1, 1}}, {{1, 0}}}};
  EXPECT_NO_THROW(validate(p));
  EXPECT_TRUE(p.has_replicas());
  EXPECT_EQ(p.experts_of(1), (std::vector<int>{1}));
  EXPECT_EQ(p.replicas_of(0), (std::vector<int>{}));
  EXPECT_EQ(p.replicas_of(1), (std::vector<int>{0}));
  EXPECT_EQ(p.copies_of(1), (std::vector<int>{1, 0}));
  // Positions and states are those of homes.
  EXPECT_EQ(p.rank_offsets(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(p.position_of_expert(), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(expert_pieces(p, 1), (std::vector<SlicePiece>{{0, 1, 0, 1}}));
}

TEST(Placement, BrokenTablesAreRefused) {
  const auto refuse = [](const ExpertPlacement& p, const char* why) {
    const auto error = refusal_of([&] { validate(p); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse({2, {{{0, 0}}, {}}}, "assigns expert 1 to no rank");
  refuse({2, {{{0, 0}}, {{2, 0}}}}, "rank 2, expected 0 to 1");
  refuse({2, {{{0, 0}}, {{-1, 0}}}}, "rank -1, expected 0 to 1");
  refuse({2, {{{0, 0}}, {{1, 1}}}}, "rank 1");            // a hole
  refuse({2, {{{0, 0}}, {{0, 0}}, {{1, 0}}}}, "rank 0");  // two in one slot
  refuse({2, {{{0, 0}}, {{1, -1}}}}, "rank 1");           // a negative slot
  refuse({2, {{{0, 0}, {0, 1}}, {{1, 0}}}}, "rank 0 twice");
  refuse({2, {{{0, 0}, {1, 0}}, {{1, 1}}}}, "mixes homes and replicas in the slots of rank 1");
  refuse({0, {{{0, 0}}}}, "0 expert-parallel ranks");
  EXPECT_NO_THROW(validate({2, {{{0, 0}}}}));  // a rank without experts is legal in a table
  EXPECT_NO_THROW(validate({}));
}

TEST(Placement, SlicesAreNoReplicas) {
  const ExpertPlacement placement = make_sliced_placement(3, {5, 9, 9});
  EXPECT_NO_THROW(validate(placement));
  EXPECT_FALSE(placement.has_replicas());
  EXPECT_EQ(placement.experts_of(1), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(placement.position_of_expert(), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(placement.widest(), 1);
  EXPECT_EQ(make_block_placement(3, 3).widest(), 0);
}

// Placements of a model: a dense layer, then layers of six experts.
TEST(Placements, OfAModelAreChecked) {
  const ModelSpec model = build_native_model(small_native());
  const int64_t experts = model.layers[1].moe.experts;
  const Placements blocks = make_block_placements(model, 2);
  EXPECT_NO_THROW(validate(blocks, model, 2));
  EXPECT_EQ(blocks.version, 0);
  EXPECT_EQ(blocks.layers[0], ExpertPlacement{});
  EXPECT_EQ(blocks.layers[1], make_block_placement(experts, 2));
  const auto refuse = [&](auto change, const char* why) {
    Placements broken = blocks;
    change(broken);
    const auto error = refusal_of([&] { validate(broken, model, 2); });
    ASSERT_TRUE(error) << why;
    EXPECT_EQ(error->code(), Exit::config);
    EXPECT_TRUE(contains(error->what(), why)) << error->what();
  };
  refuse([](Placements& p) { p.version = -1; }, "version -1");
  refuse([](Placements& p) { p.layers.pop_back(); }, "layers, the model has");
  refuse([](Placements& p) { p.layers[0] = p.layers[1]; }, "layer 0 has");
  refuse([](Placements& p) { p.layers[1].homes.pop_back(); }, "layer 1 has");
  refuse([](Placements& p) { p.layers[1].ep = 3; }, "3 expert-parallel ranks, but mesh.ep = 2");
  refuse([](Placements& p) { p.layers[1].homes[0][0].slot = 1 << 30; }, "layer 1 leaves slot 0 of rank 0 empty");
  refuse([](Placements& p) { p.layers[1] = make_sliced_placement(6, {12, 9}); }, "slices of 21 features in all");
  refuse([](Placements& p) { p.layers[1] = make_sliced_placement(6, {20, 0}); }, "does not give every rank a slice");
  refuse([](Placements& p) { p.layers[1] = make_sliced_placement(6, {12, 4, 4}); }, "3 expert-parallel ranks");
  refuse(
      [](Placements& p) {
        p.layers[1] = make_sliced_placement(6, {12, 8});
        std::swap(p.layers[1].homes[0], p.layers[1].homes[1]);
      },
      "does not give every rank a slice");
  const auto shared = std::make_shared<Placements>(blocks);
  RunSpec run = small_run();
  run.mesh.ep = 2;
  EXPECT_EQ(make_plan(model, run, 2, 1, {}, shared).placements, shared);  // one value for all ranks
}

}  // namespace
}  // namespace mw::test
