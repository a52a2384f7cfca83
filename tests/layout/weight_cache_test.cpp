#include "layout/weight_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "layout/helpers.h"

namespace mw::test {
namespace {

using Piece = std::tuple<int64_t, int64_t, bool>;  // layer, piece, second form

Piece piece_of(const WeightUse& use, const std::vector<LayerPieces>& layers) {
  return {use.layer, use.piece, use.backward && !layers[static_cast<size_t>(use.layer)].one_form};
}

int64_t gathers_in(const std::vector<WeightUse>& uses) {
  return std::count_if(uses.begin(), uses.end(), [](const WeightUse& use) { return use.gathers; });
}

// What is in each slot when its turn comes: a hit finds its piece, and a gather spares the piece before.
void check_contents(const std::vector<WeightUse>& uses, const std::vector<LayerPieces>& layers, int64_t slots) {
  std::map<int64_t, Piece> in_slot;
  for (size_t i = 0; i < uses.size(); ++i) {
    const WeightUse& use = uses[i];
    ASSERT_TRUE(use.slot >= 0 && use.slot < slots);
    if (use.gathers) {
      if (use.piece > 0 && slots > 1) {
        ASSERT_NE(use.slot, uses[i - 1].slot) << i;
      }
      in_slot[use.slot] = piece_of(use, layers);
    }
    ASSERT_TRUE(in_slot.count(use.slot) > 0 && in_slot[use.slot] == piece_of(use, layers)) << i;
  }
}

// The fewest gathers of any way to replace pieces: what may be in the slots after each use, and at what cost.
int64_t fewest_gathers(const std::vector<WeightUse>& uses, const std::vector<LayerPieces>& layers, int64_t slots) {
  std::map<std::set<Piece>, int64_t> costs = {{{}, 0}};
  for (size_t i = 0; i < uses.size(); ++i) {
    const Piece wanted = piece_of(uses[i], layers);
    std::map<std::set<Piece>, int64_t> after;
    const auto reach = [&](std::set<Piece> held, int64_t cost) {
      held.insert(wanted);
      const auto [at, is_new] = after.try_emplace(std::move(held), cost);
      if (!is_new) at->second = std::min(at->second, cost);
    };
    for (const auto& [held, cost] : costs) {
      if (held.count(wanted) > 0) reach(held, cost);
      else if (std::ssize(held) < slots) reach(held, cost + 1);
      else
        for (const Piece& evicted : held) {
          if (uses[i].piece > 0 && slots > 1 && evicted == piece_of(uses[i - 1], layers)) continue;
          std::set<Piece> left = held;
          left.erase(evicted);
          reach(std::move(left), cost + 1);
        }
    }
    costs = std::move(after);
  }
  int64_t fewest = std::ssize(uses);
  for (const auto& [held, cost] : costs) fewest = std::min(fewest, cost);
  return fewest;
}

TEST(WeightCache, GathersNoMoreThanAnyWayToReplacePieces) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t hits = 0;
  for (int instance = 0; instance < 2000; ++instance) {
    std::vector<LayerPieces> layers(static_cast<size_t>(draw(1, 3)));
    for (LayerPieces& layer : layers) layer = {draw(instance % 4 == 0 ? 0 : 1, 3), draw(0, 1) == 0};
    std::vector<LayerPass> passes(static_cast<size_t>(draw(1, 8)));
    for (LayerPass& pass : passes) pass = {draw(0, std::ssize(layers) - 1), draw(0, 1) == 0};
    for (const int64_t slots : {1, 2, 3, 4}) {
      const std::vector<WeightUse> uses = plan_weight_uses(passes, layers, slots);
      check_contents(uses, layers, slots);
      ASSERT_EQ(gathers_in(uses), fewest_gathers(uses, layers, slots)) << "instance " << instance << ", " << slots;
      hits += std::ssize(uses) - gathers_in(uses);
    }
  }
  EXPECT_GT(hits, 5000);
}

TEST(WeightCache, ListsThePiecesOfAllPassesInTheirOrder) {
  const std::vector<LayerPieces> layers = {{2, true}, {0, true}, {1, true}};
  const std::vector<WeightUse> uses =
      plan_weight_uses({{0, false}, {1, false}, {2, false}, {2, true}, {0, true}}, layers, 2);
  const std::vector<std::tuple<int64_t, int64_t, bool, bool>> expected = {{0, 0, false, true}, {0, 1, false, true},
                                                                          {2, 0, false, true}, {2, 0, true, false},
                                                                          {0, 0, true, false}, {0, 1, true, true}};
  ASSERT_EQ(uses.size(), expected.size());
  for (size_t i = 0; i < uses.size(); ++i)
    EXPECT_EQ(std::tuple(uses[i].layer, uses[i].piece, uses[i].backward, uses[i].gathers), expected[i]) << i;
}

RunSpec piped_run(ScheduleKind kind, int64_t pp, int64_t slots) {
  RunSpec run = small_run();
  run.native = small_native();
  run.native.experts = 8;
  run.native.layers = 8;
  run.native.dense_layers = 1;
  run.mesh.pp = pp;
  run.mesh.ep = 2;
  run.mesh.schedule = kind;
  run.train.dtype = DType::bf16;
  run.train.global_batch = 16;
  run.train.micro_batches = 4;
  run.moe.transport = "gather_weights";
  run.moe.row_chunks = 2;
  run.moe.weight_slots = slots;
  return run;
}

// In every schedule, with one form of weights and with two: uses are those of the rank's actions, and with slots for
// all pieces each is gathered once. The counts of a layer are those of the ranks that have it.
TEST(WeightCache, FollowsTheScheduleOfEveryRank) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                  ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (const bool one_form : {true, false})
      for (const int64_t wanted : {1, 2, 5, 0, 1000}) {
        const RunSpec run = piped_run(kind, 2, wanted);
        const ModelSpec model = build_native_model(run.native);
        std::vector<PieceGathers> sums(model.layers.size(), PieceGathers{{0, 0}, {0, 0}});
        std::vector<PieceGathers> counts;
        for (const int rank : {0, 2}) {  // of both pipeline coordinates
          const Plan plan = make_plan(model, run, 4, rank, {true, one_form});
          const WeightCachePlan& cache = plan.weight_cache;
          std::vector<LayerPieces> layers;
          for (const WeightGather& gather : plan.gathers) layers.push_back(pieces_of(gather));
          int64_t moe_layers = 0;
          for (const StagePlan& stage : plan.stages)
            moe_layers += stage.end_layer - std::max<int64_t>(stage.first_layer, 1);
          const int64_t different = moe_layers * 2 * (one_form ? 1 : 2);
          EXPECT_EQ(cache.slots.different, different);
          EXPECT_EQ(cache.slots.count(), wanted == 0 ? different : std::min(wanted, different));
          check_contents(cache.step, layers, cache.slots.count());
          check_contents(cache.forward, layers, cache.slots.count());
          EXPECT_EQ(std::ssize(cache.step), run.train.micro_batches * moe_layers * 2 * 2);
          EXPECT_EQ(gathers_in(cache.forward), moe_layers * 2);
          if (cache.slots.count() == different) {
            EXPECT_EQ(gathers_in(cache.step), different);
          }
          add_gathers(sums, cache.step);
          counts = cache.gathers;
          ASSERT_EQ(counts.size(), model.layers.size());
        }
        EXPECT_TRUE(counts[0].forward.empty());
        for (size_t i = 1; i < counts.size(); ++i) {
          EXPECT_EQ(counts[i].forward, sums[i].forward);
          EXPECT_EQ(counts[i].backward, sums[i].backward);
        }
      }
}

// By hand, two pieces in each of three layers and two slots. Where a pass turns, the last layer's two pieces are still
// there; so are the first layer's for the next micro-batch.
TEST(WeightCache, KeepsWhatTheNextPassReadsFirst) {
  RunSpec run = piped_run(ScheduleKind::one_f_one_b, 1, 2);
  run.native.layers = 4;
  const ModelSpec model = build_native_model(run.native);
  const auto gathers = [&](bool one_form) {
    return gathers_in(make_plan(model, run, 2, 0, {true, one_form}).weight_cache.step);
  };
  EXPECT_EQ(gathers(true), 4 * 2 * 6 - 7 * 2);
  EXPECT_EQ(gathers(false), 4 * 2 * 6);
}

TEST(WeightCache, TakesAsMuchMemoryAsItsSlots) {
  const auto rounded = [](int64_t n) { return (n + 63) / 64 * 64; };
  for (const int64_t wanted : {1, 2, 3, 0, 1000}) {
    RunSpec run = piped_run(ScheduleKind::zb_v, 2, wanted);
    run.recompute = Recompute::selective;
    const Plan plan = make_plan(build_native_model(run.native), run, 4, 1, {true, false});
    const ExpertForms& forms = plan.gathers.back().forms;
    ASSERT_GT(forms.backward_bytes(), forms.forward_bytes());
    EXPECT_EQ(plan.weight_cache.slots.bytes, rounded(4 * forms.backward_bytes()));
    for (const ByteRow& row : plan.activation_rows)
      if (row.name == kWeightSlots) {
        EXPECT_EQ(row.bytes(), plan.weight_cache.slots.count() * plan.weight_cache.slots.bytes);
      }
    EXPECT_EQ(contains(describe(plan), fmt::format("{} slots of", plan.weight_cache.slots.count())), wanted != 2);
  }
}

TEST(WeightCache, LeavesOutAGatherAsAFault) {
  RunSpec run = piped_run(ScheduleKind::one_f_one_b, 2, 2);
  const ModelSpec model = build_native_model(run.native);
  const int64_t all = gathers_in(make_plan(model, run, 4, 3, {}).weight_cache.step);
  run.fault = Fault::stale_cache_slot;
  EXPECT_EQ(gathers_in(make_plan(model, run, 4, 3, {}).weight_cache.step), all - 1);
}

}  // namespace
}  // namespace mw::test
