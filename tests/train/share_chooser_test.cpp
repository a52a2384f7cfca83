// Measured shares: what counts as compute, and a run whose ranks are of unequal speed.
#include "train/loop/share_chooser.h"

#include "layout/shares.h"
#include "support/thread_comm.h"
#include "train/engines.h"
#include "train/loop/slow_ranks.h"
#include "train/redistribute.h"

namespace mw::test {
namespace {

TEST(ComputeSeconds, LeaveOutWaitsAndCountNestedScopesOnce) {
  const auto event = [](const char* label, Work work, int64_t begin_ms, int64_t end_ms, Lane lane = Lane::host) {
    return TraceEvent{label, work, begin_ms * 1'000'000, end_ms * 1'000'000, lane, {}};
  };
  const std::vector<TraceEvent> events = {
      event("matmul", Work::matmul, 1, 3),
      event("gather", Work::exchange, 3, 9),
      event("matmul", Work::matmul, 11, 12),
      event("router_logits", Work::router, 10, 14),  // around the matmul before
      event("matmul", Work::matmul, 20, 25),
      event("wait", Work::exchange, 25, 29),
      event("expert_up", Work::other, 20, 30),
      event("adamw", Work::optimizer, 30, 40),
      event("matmul", Work::matmul, 50, 90, Lane::communication),
  };
  const ComputeSeconds seconds = compute_seconds(events, Lane::host);
  EXPECT_NEAR(seconds.all, 0.011, 1e-9);
  EXPECT_NEAR(seconds.experts, 0.005, 1e-9);
}

// Large enough for its times to be longer than the shortest sleeps.
RunSpec measured_run(const std::string& transport) {
  RunSpec run = even_run();
  run.train.dtype = DType::f32;
  run.train.global_batch = 12;
  run.train.micro_batches = 1;
  run.train.seq_len = 32;
  run.train.steps = 1000;
  run.native.expert_width = 256;
  run.mesh.ep = 2;
  run.mesh.shares = kMeasuredShares;
  run.mesh.adapt_every = 50;
  run.moe.transport = transport;
  if (transport == "gather_tokens") run.mesh.width_shares = kMeasuredShares;
  run.slow = "1:0.05";
  return run;
}

Plan plan_of(const RunSpec& run, Comm& world) {
  return plan_on_machine(build_native_model(run.native), run, world, {}, 1, {});
}

TEST(ShareChooser, SharesBySpeedsThatItMeasures) {
  const SampleOrder samples(counting_tokens(100), 32, 128, 1);
  for (const char* transport : {"flat", "gather_weights", "gather_tokens"})
    run_ranks(2, [&](Comm& world, Stream&) {
      RunSpec run = measured_run(transport);
      const ShareChooser chooser(run, plan_of(run, world), world, 1, {}, samples, std::nullopt);
      const std::vector<int64_t> shares = parse_shares(run.mesh.shares, "shares");
      EXPECT_EQ(shares[0] + shares[1], 12);
      EXPECT_GE(shares[0], 8) << transport;
      if (run.mesh.width_shares.empty()) return;
      EXPECT_EQ(run.mesh.width_shares, "3,1") << "of units of 64 features";
      EXPECT_EQ(chooser.notes().size(), 2);
    });
}

TEST(ShareChooser, SharesExpertsAndLayersBySpeeds) {
  const SampleOrder samples(counting_tokens(100), 32, 128, 1);
  run_ranks(2, [&](Comm& world, Stream&) {
    RunSpec run = measured_run("flat");
    run.mesh.shares = "";
    run.mesh.expert_shares = kMeasuredShares;
    const ShareChooser chooser(run, plan_of(run, world), world, 1, {}, samples, std::nullopt);
    EXPECT_EQ(run.mesh.expert_shares, "5,1");
    run = measured_run("auto");
    run.mesh.shares = "";
    run.mesh.ep = 1;
    run.mesh.pp = 2;
    run.mesh.stage_layers = kMeasuredShares;
    run.native.layers = 6;
    const ShareChooser layers(run, plan_of(run, world), world, 1, {}, samples, std::nullopt);
    EXPECT_EQ(run.mesh.stage_layers, "5,1");
  });
}

TEST(ShareChooser, KeepsTheSharesOfTheSameLayout) {
  const SampleOrder samples(counting_tokens(100), 32, 128, 1);
  run_ranks(2, [&](Comm& world, Stream&) {
    RunSpec run = measured_run("gather_tokens");
    RunSpec before = run;
    before.mesh.shares = "5,7";
    before.mesh.width_shares = "1,3";
    const ShareChooser chooser(run, plan_of(run, world), world, 1, {}, samples,
                               world.rank() == 0 ? std::optional(before) : std::nullopt);
    EXPECT_EQ(run.mesh.shares, "5,7");
    EXPECT_EQ(run.mesh.width_shares, "1,3");
  });
}

// A running engine computes from then on as one that was made with the new shares.
TEST(ShareChooser, ChangesSharesWhereARankBecomesSlow) {
  const SampleOrder samples(counting_tokens(100), 32, 128, 1);
  run_ranks(2, [&](Comm& world, Stream&) {
    RandomLayout layout{measured_run("gather_weights"), nullptr, ""};
    RunSpec before = layout.run;
    before.mesh.shares = "6,6";
    ShareChooser chooser(layout.run, plan_of(layout.run, world), world, 1, {}, samples, before);
    const std::unique_ptr<Engine> engine = trained_engine(layout, world);
    std::string told;
    for (const int64_t step : {50, 100, 150, 200, 250}) {
      EXPECT_EQ(told, "") << step;
      chooser.begin_step(*engine, step);
      slow_down(*engine, step);
      take_step(*engine, step);
      chooser.end_step(*engine, 0.001, step);
      told = chooser.after_step(*engine, step);
    }
    EXPECT_NE(told.find("in place of 6,6"), std::string::npos) << told;
    layout.run.mesh.shares = engine->plan.run.mesh.shares;
    EXPECT_GE(parse_shares(layout.run.mesh.shares, "shares")[0], 8);
    const std::unique_ptr<Engine> fresh = make_engine(layout, world);
    redistribute(*engine, *fresh);
    EXPECT_EQ(take_step(*engine, 300), take_step(*fresh, 300));
    expect_same_states(*engine, *fresh);
  });
}

}  // namespace
}  // namespace mw::test
