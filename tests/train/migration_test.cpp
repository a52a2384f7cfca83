// Experts that move between the ranks of a running engine.
#include "engine/migration.h"

#include <cmath>
#include <random>

#include "support/thread_comm.h"
#include "train/engines.h"
#include "train/redistribute.h"

namespace mw::test {
namespace {

SharedPlacements shuffled(const Engine& engine, int64_t step) {
  return std::make_shared<Placements>(shuffle_experts(*engine.plan.placements, 5, step));
}

TEST(ShuffleExperts, PermutesTheSlotsOfEachLayer) {
  const ModelSpec model = build_native_model(small_run().native);
  const Placements blocks = make_block_placements(model, 3), next = shuffle_experts(blocks, 1, 2);
  EXPECT_NO_THROW(validate(next, model, 3));
  EXPECT_EQ(next.version, 1);
  EXPECT_EQ(next, shuffle_experts(blocks, 1, 2));
  for (const auto& other : {shuffle_experts(blocks, 1, 3), shuffle_experts(blocks, 2, 2)})
    EXPECT_NE(next.layers, other.layers);
  EXPECT_NE(next.layers[1], next.layers[2]);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(next.layers[i].rank_offsets(), blocks.layers[i].rank_offsets());
}

// An engine of any layout ends up as a fresh one with the new placement, into which the states were redistributed.
class RandomMigration : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomMigration, EqualsRedistribution) {
  std::mt19937_64 random(GetParam());
  RunSpec base = small_run();
  if (GetParam() % 2 == 0) base.train.dtype = DType::bf16;
  if (GetParam() % 3 == 0) base.train.optimizer = Optimizer::muon;
  const int ranks = 2 + static_cast<int>(GetParam() % 7);
  const RandomLayout layout = random_layout(base, ranks, static_cast<int64_t>(GetParam() / 2 % 2), random);
  SCOPED_TRACE(fmt::format("{} ranks {}", ranks, layout.text));
  run_ranks(ranks, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(layout, world);
    const SharedPlacements next = shuffled(*engine, 1);
    RandomLayout placed = layout;
    placed.placements = next;
    const std::unique_ptr<Engine> fresh = make_engine(placed, world);
    redistribute(*engine, *fresh);
    // In one round, in several, and nearly element by element.
    const int64_t buffer_bytes = GetParam() % 3 == 0 ? kMigrationBytes : GetParam() % 3 == 1 ? 4099 : 300;
    migrate_experts(*engine, next, buffer_bytes);
    EXPECT_EQ(*engine->plan.placements, *next);
    expect_same_states(*engine, *fresh);
    EXPECT_EQ(take_step(*engine, 3), take_step(*fresh, 3));
    expect_same_states(*engine, *fresh);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, RandomMigration, testing::Range<uint64_t>(0, 16));

TEST(MeasureBandwidth, IsThatOfGroupsThatShareExperts) {
  for (const int ep : {1, 2, 4}) {
    RandomLayout layout = layout_of(1, 0, nullptr);
    layout.run.mesh.ep = ep;
    run_ranks(4, [&](Comm& world, Stream&) {
      const std::unique_ptr<Engine> engine = make_engine(layout, world);
      const double rate = measure_bandwidth(*engine);
      double most = rate, least = -rate;
      world.all_reduce_max(std::span(&most, 1));
      world.all_reduce_max(std::span(&least, 1));
      EXPECT_EQ(most, -least) << "ranks differ";
      EXPECT_GT(rate, 0);
      EXPECT_EQ(std::isinf(rate), ep == 1) << rate;
    });
  }
}

struct Case {
  const char* name;
  int ranks;
  std::function<void(RunSpec&)> change;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest calls it by this name
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"edp1", 4, [](RunSpec& r) { r.mesh.ep = 4; }},
    {"edp2", 4, [](RunSpec& r) { r.mesh.ep = 2; }},
    {"muon", 4, [](RunSpec& r) { r.mesh.ep = 2, r.train.optimizer = Optimizer::muon; }},
    {"one_f_one_b", 8, [](RunSpec& r) { r.mesh.pp = 2, r.mesh.ep = 2; }},
    {"zb_h1", 8, [](RunSpec& r) { r.mesh.pp = 2, r.mesh.ep = 2, r.mesh.schedule = ScheduleKind::zb_h1; }},
};

class ManyMigrations : public testing::TestWithParam<std::tuple<Case, DType, int64_t>> {};

// 200 random migrations in a row, 20 after each of ten steps.
TEST_P(ManyMigrations, ChangeNoBit) {
  const auto& [c, dtype, zero] = GetParam();
  RandomLayout layout = layout_of(1, zero, nullptr);
  c.change(layout.run);
  layout.run.train.dtype = dtype;
  run_ranks(c.ranks, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> stays = trained_engine(layout, world), moves = trained_engine(layout, world);
    const SharedPlacements start = moves->plan.placements;
    int64_t migrations = 0;
    for (int64_t step = 3; step < 13; ++step) {
      const StepStats x = accumulate_gradients(*stays, stage(*stays, random_batches(stays->plan))),
                      y = accumulate_gradients(*moves, stage(*moves, random_batches(moves->plan)));
      EXPECT_EQ(x.total_loss, y.total_loss) << step;
      EXPECT_EQ(x.grad_norm, y.grad_norm) << step;
      EXPECT_EQ(x.load, y.load) << step;
      apply_update(*stays, x, {1e-3, step});
      apply_update(*moves, y, {1e-3, step});
      for (int i = 0; i < 20; ++i) migrate_experts(*moves, shuffled(*moves, ++migrations));
    }
    EXPECT_EQ(migrations, 200);
    EXPECT_EQ(moves->plan.placements->version, 200);
    EXPECT_NE(moves->plan.placements->layers, start->layers);
    migrate_experts(*moves, start);
    expect_same_states(*stays, *moves);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, ManyMigrations,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(DType::f32, DType::bf16),
                                          testing::Values(0, 1)),
                         [](const auto& c) {
                           return fmt::format("{}_{}_zero{}", std::get<0>(c.param).name, name_of(std::get<1>(c.param)),
                                              std::get<2>(c.param));
                         });

// Two experts of one layer change places: each rank sends its one, with both moments, and nothing else.
TEST(Migration, SendsOnlyWhatMoves) {
  run_ranks(2, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(layout_of(2, 0, nullptr), world);
    Placements swapped = *engine->plan.placements;
    std::swap(swapped.layers[1].homes[0], swapped.layers[1].homes[5]);
    int64_t messages = 0;
    const Migrated done =
        migrate_experts(*engine, std::make_shared<Placements>(swapped), 1000, [&messages] { ++messages; });
    const int64_t bytes = 10 * 16 * 3 * 4 * 3;  // gate, up and down; master weights and moments
    EXPECT_EQ(done.sent_bytes, bytes);
    EXPECT_EQ(done.received_bytes, bytes);
    EXPECT_EQ(done.rounds, (bytes + 999) / 1000);
    EXPECT_EQ(messages, 2 * done.rounds + 2);  // before and while states travel; before weights and replicas do
    EXPECT_EQ(migrate_experts(*engine, std::make_shared<Placements>(swapped)).rounds, 0);
  });
}

TEST(Migration, StaleMomentsStayBehind) {
  run_ranks(2, [&](Comm& world, Stream&) {
    RandomLayout layout = layout_of(2, 0, nullptr);
    const std::unique_ptr<Engine> right = trained_engine(layout, world);
    layout.run.fault = Fault::stale_moment;
    const std::unique_ptr<Engine> stale = trained_engine(layout, world);
    const SharedPlacements next = shuffled(*right, 1);
    migrate_experts(*right, next);
    migrate_experts(*stale, next);
    const Parameter &a = right->params.find("layers.1.moe.w_up"), &b = stale->params.find("layers.1.moe.w_up");
    EXPECT_EQ(std::memcmp(a.master.data, b.master.data, static_cast<size_t>(a.master.bytes())), 0);
    EXPECT_NE(std::memcmp(a.adam_m.data, b.adam_m.data, static_cast<size_t>(a.adam_m.bytes())), 0);
  });
}

TEST(Migration, RefusesOtherNumbersOfExperts) {
  const std::string message = error_of(
      [&] {
        run_ranks(2, [&](Comm& world, Stream&) {
          const std::unique_ptr<Engine> engine = make_engine(layout_of(2, 0, nullptr), world);
          Placements next = *engine->plan.placements;
          next.layers[1].homes[5] = {{0, 3}};
          migrate_experts(*engine, std::make_shared<Placements>(next));
        });
      },
      Exit::config);
  EXPECT_TRUE(contains(message, "without room")) << message;
}

}  // namespace
}  // namespace mw::test
