// Steps that are skipped because their loss or gradient norm is a spike.
#include "train/loop/spikes.h"

#include "train/helpers.h"

namespace mw::test {
namespace {

StepStats stats_of(double loss, double norm) {
  StepStats stats;
  stats.loss = loss;
  stats.grad_norm = norm;
  return stats;
}

TEST(Spikes, AreFarAboveTheMean) {
  TrainSpec train;
  train.skip_spikes = 3;
  train.spike_window = 8;
  const StepHistory history{{1, 3, 1, 3}, {10, 10, 10, 10}};  // loss 2 +- 1, norm 10 +- 1e-5
  EXPECT_EQ(find_spike(train, history, stats_of(5.0, 10)), "");
  EXPECT_EQ(find_spike(train, history, stats_of(5.1, 10)),
            "loss 5.1 is 3.1 standard deviations above the mean 2 of the last 4 steps");
  EXPECT_EQ(find_spike(train, history, stats_of(-50, 1)), "");  // below is none
  EXPECT_EQ(find_spike(train, history, stats_of(2, 10.00001)), "");
  EXPECT_NE(find_spike(train, history, stats_of(2, 10.1)), "");
  EXPECT_EQ(find_spike(train, {{1, 3, 1}, {1, 1, 1}}, stats_of(1e9, 1e9)), "");  // too short
  train.skip_spikes = 0;
  EXPECT_EQ(find_spike(train, history, stats_of(1e9, 1e9)), "");
}

TEST(Spikes, ChangeNoWeightsAndAreCounted) {
  RunSpec run = small_run();
  run.train.skip_spikes = 3;
  run.train.spike_window = 4;
  const std::unique_ptr<Comm> world = make_self_comm();
  Engine engine(build_native_model(run.native), run, *world, 1);
  engine.params.initialise(3, engine.stream);
  engine.params.repack(engine.stream);
  const auto weights = [&] { return read_values<float>(engine.stream, engine.params.find("embed").master); };
  RunState state;
  const StepStats usual = accumulate_gradients(engine, stage(engine, random_batches(engine.plan)));
  StepStats spike = usual;
  spike.loss *= 10;
  std::vector<float> before = weights();
  for (const bool is_spike : {false, false, true, false, false, false}) {
    const std::string why = update_unless_spike(engine, is_spike ? spike : usual, state);
    ++state.step;
    EXPECT_EQ(why.empty(), !is_spike) << state.step;
    EXPECT_EQ(weights() == before, is_spike) << state.step;
    before = weights();
  }
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.history.losses, (std::vector<double>{spike.loss, usual.loss, usual.loss, usual.loss}));
  EXPECT_EQ(state.history.norms, std::vector<double>(4, usual.grad_norm));
}

// Bias correction counts updates, so that a skipped step leaves no trace in the next one.
TEST(Spikes, LeaveTheNextUpdateAsItWas) {
  RunSpec run = small_run();
  run.train.schedule = LearningRateSchedule::constant;
  run.train.skip_spikes = 3;
  run.train.spike_window = 2;
  const std::unique_ptr<Comm> world = make_self_comm();
  std::vector<std::vector<float>> weights;
  for (const bool with_spike : {false, true}) {
    Engine engine(build_native_model(run.native), run, *world, 1);
    engine.params.initialise(3, engine.stream);
    engine.params.repack(engine.stream);
    const StepStats usual = accumulate_gradients(engine, stage(engine, random_batches(engine.plan)));
    StepStats spike = usual;
    spike.grad_norm *= 10;
    RunState state;
    update_unless_spike(engine, usual, state);
    ++state.step;
    if (with_spike) {
      EXPECT_NE(update_unless_spike(engine, spike, state), "");
      ++state.step;
    }
    update_unless_spike(engine, usual, state);
    weights.push_back(read_values<float>(engine.stream, engine.params.find("layers.0.attn.wq").master));
  }
  EXPECT_EQ(weights[0], weights[1]);
}

}  // namespace
}  // namespace mw::test
