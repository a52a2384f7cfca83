#include "train/loop/balancer.h"

#include "engine/migration.h"
#include "support/thread_comm.h"
#include "train/checkpoint/checkpoint.h"
#include "train/engines.h"

namespace mw::test {
namespace {

// Two MoE layers of six experts on two ranks. In the first one a rank has three quarters of the rows.
StepStats skewed() {
  StepStats stats;
  stats.load = {{300, 300, 300, 100, 100, 100}, {200, 200, 200, 200, 200, 200}};
  return stats;
}

RandomLayout balanced_layout() {
  RandomLayout layout = layout_of(2, 0, nullptr);
  layout.run.moe.balance = Balance::swap;
  layout.run.moe.balance_every = 3;
  layout.run.moe.balance_horizon = int64_t{1} << 40;  // any gain pays
  return layout;
}

TEST(Balancer, MovesExpertsEveryFewSteps) {
  run_ranks(2, [](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(balanced_layout(), world);
    Balancer balancer(*engine);
    for (int64_t step = 1; step <= 7; ++step) {
      take_step(*engine, 2 + step);  // its products take time
      const BalanceReport report = balancer.after_step(skewed(), step);
      // Two large experts and a small one on one rank are the best: 700 of 1200 rows.
      EXPECT_DOUBLE_EQ(report.worst_rank_imbalance, step <= 3 ? 1.5 : 7 / 6.0) << step;
      EXPECT_EQ(report.rank_rows[0][0] + report.rank_rows[0][1], 1200) << step;
      EXPECT_EQ(std::max(report.rank_rows[0][0], report.rank_rows[0][1]), step <= 3 ? 900 : 700) << step;
      EXPECT_EQ(report.rank_rows[1], (std::vector<int64_t>{600, 600})) << step;
      EXPECT_DOUBLE_EQ(report.rank_imbalance, (report.worst_rank_imbalance + 1) / 2) << step;
      EXPECT_EQ(report.moved_experts, step == 3 ? 2 : 0) << step;
      EXPECT_EQ(report.moved_bytes, step == 3 ? 2 * 10 * 16 * 3 * 12 : 0) << step;
      EXPECT_EQ(report.expected_gain.value_or(0) > 0, step == 3) << step;
    }
    EXPECT_EQ(engine->plan.placements->version, 1);
  });
}

// Experts move by the means of loads. A step with even loads says that this saves nothing.
TEST(Balancer, ExpectsAGainByTheLastLoads) {
  run_ranks(2, [](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(balanced_layout(), world);
    Balancer balancer(*engine);
    for (int64_t step = 1; step <= 3; ++step) {
      take_step(*engine, 2 + step);
      StepStats stats = skewed();
      if (step == 3) stats.load[0] = stats.load[1];
      const BalanceReport report = balancer.after_step(stats, step);
      EXPECT_EQ(report.moved_experts, step == 3 ? 2 : 0) << step;
      EXPECT_EQ(report.expected_gain, step == 3 ? std::optional(0.0) : std::nullopt) << step;
    }
  });
}

TEST(Balancer, StaysWhereMovesDoNotPay) {
  for (const Balance balance : {Balance::none, Balance::swap})
    run_ranks(2, [&](Comm& world, Stream&) {
      RandomLayout layout = balanced_layout();
      layout.run.moe.balance = balance;
      layout.run.moe.balance_horizon = 1;
      const std::unique_ptr<Engine> engine = make_engine(layout, world);  // without a step: products took no time
      Balancer balancer(*engine);
      for (int64_t step = 1; step <= 3; ++step) EXPECT_EQ(balancer.after_step(skewed(), step).moved_experts, 0);
    });
}

// Three steps after a move, the next one would have to pay within three steps.
TEST(Balancer, DoesNotFollowLoadsAtAnyCost) {
  run_ranks(2, [](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(balanced_layout(), world);
    Balancer balancer(*engine);
    StepStats reversed = skewed();
    reversed.load[0] = {0, 0, 0, 0, 600, 600};
    for (int64_t step = 1; step <= 6; ++step) {
      take_step(*engine, 2 + step);
      const BalanceReport report = balancer.after_step(step <= 3 ? skewed() : reversed, step);
      EXPECT_EQ(report.moved_experts, step == 3 ? 2 : 0) << step;
    }
  });
}

TEST(Balancer, ResumesAPlacementThatFits) {
  run_ranks(2, [](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = trained_engine(balanced_layout(), world);
    Balancer balancer(*engine);
    Placements recorded = *engine->plan.placements;
    std::swap(recorded.layers[1].homes[0], recorded.layers[1].homes[5]);
    recorded.version = 8;
    balancer.resume(std::make_shared<Placements>(recorded));
    EXPECT_EQ(*engine->plan.placements, recorded);
    const Placements other = make_block_placements(engine->plan.model, 3);  // of other ranks
    balancer.resume(std::make_shared<Placements>(other));
    balancer.resume(nullptr);
    EXPECT_EQ(*engine->plan.placements, recorded);
  });
}

// Of one layer every rank has slices, whose place nothing changes. The other layer's experts come back all the same.
TEST(Balancer, ResumesAPlacementBesideSlices) {
  const ScratchDir dir;
  run_ranks(2, [&](Comm& world, Stream&) {
    RandomLayout layout = balanced_layout();
    layout.run.moe.transport = "flat,gather_tokens";
    const std::unique_ptr<Engine> before = trained_engine(layout, world), after = make_engine(layout, world);
    Placements moved = *before->plan.placements;
    std::swap(moved.layers[1].homes[0], moved.layers[1].homes[5]);
    moved.version = 8;
    migrate_experts(*before, std::make_shared<Placements>(moved));
    save_checkpoint(*before, dir.path(), {2, 32}, 2);
    const CheckpointIndex index = load_checkpoint(*after, dir.path() + "/step-00000002");
    Balancer(*after).resume(index.placements);
    EXPECT_EQ(*after->plan.placements, moved);
    expect_same_states(*before, *after);
  });
}

}  // namespace
}  // namespace mw::test
