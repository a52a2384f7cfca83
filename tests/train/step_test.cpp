// One optimizer step: accumulation over micro-batches, and the guard against values that are not finite.
#include "engine/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "moe/forced_load.h"
#include "support/thread_comm.h"
#include "train/engines.h"

namespace mw::test {
namespace {

struct Fixture {
  explicit Fixture(const RunSpec& run) : engine(build_native_model(run.native), run, *world, 1) {
    engine.params.initialise(1, engine.stream);
    engine.params.repack(engine.stream);
  }
  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
};

// In one micro-batch they are the fp32 sums, rounded; in several each sum is rounded when it is added.
TEST(AccumulateGradients, KeepsThoseOfExpertsInBf16) {
  for (const int64_t micro_batches : {1, 4}) {
    RunSpec run = small_run();
    run.train.dtype = DType::bf16;
    run.train.micro_batches = micro_batches;
    Fixture exact(run);
    run.expert_gradients = DType::bf16;
    Fixture rounded(run);
    const std::vector<MicroBatch> batches = random_batches(exact.engine.plan);
    const StepStats x = accumulate_gradients(exact.engine, stage(exact.engine, batches)),
                    y = accumulate_gradients(rounded.engine, stage(rounded.engine, batches));
    EXPECT_EQ(x.loss, y.loss);
    EXPECT_NEAR(x.grad_norm, y.grad_norm, 1e-3 * x.grad_norm);
    for (const Parameter& p : exact.engine.params.all()) {
      if (!p.row.trained) continue;
      const Parameter& q = rounded.engine.params.find(p.row.name);
      ASSERT_EQ(q.grad.dtype, p.row.expert ? DType::bf16 : DType::f32) << p.row.name;
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < p.grad.numel(); ++i) {
        const float fp32 = value_at(p.grad, i),
                    kept = p.row.expert && micro_batches == 1 ? to_float(to_bf16(fp32)) : fp32;
        difference += std::pow(value_at(q.grad, i) - kept, 2.0);
        norm += std::pow(fp32, 2.0);
      }
      EXPECT_GT(norm, 0) << p.row.name;
      EXPECT_LE(std::sqrt(difference), (p.row.expert && micro_batches > 1 ? 4e-3 : 0) * std::sqrt(norm)) << p.row.name;
    }
  }
}

// What a step before has left in the gradients, however bad, does not reach this one.
TEST(AccumulateGradients, BeginsAnew) {
  RunSpec run = small_run();
  run.train.micro_batches = 4;
  Fixture a(run), b(run);
  for (Parameter& p : b.engine.params.all())
    if (p.row.trained) std::fill_n(p.grad.as<float>(), p.grad.numel(), std::numeric_limits<float>::quiet_NaN());
  const std::vector<MicroBatch> batches = random_batches(a.engine.plan);
  const double norm = accumulate_gradients(a.engine, stage(a.engine, batches)).grad_norm;
  EXPECT_TRUE(std::isfinite(norm));
  EXPECT_EQ(accumulate_gradients(b.engine, stage(b.engine, batches)).grad_norm, norm);
}

TEST(AccumulateGradients, DoesNotDependOnTheCutIntoMicroBatches) {
  RunSpec one = small_run(), four = small_run();
  one.moe.aux_loss_coef = four.moe.aux_loss_coef = 0;  // defined over one micro-batch
  one.train.micro_batches = 1;
  four.train.micro_batches = 4;
  Fixture a(one), b(four);
  std::vector<MicroBatch> whole = random_batches(a.engine.plan), parts;
  for (size_t t = 0; t < whole[0].labels.size(); t += 3) whole[0].labels[t] = -100;
  whole[0].labels[0] = whole[0].labels[1] = -100;  // the parts have unequal numbers of labels
  const auto quarter = static_cast<std::ptrdiff_t>(whole[0].ids.size() / 4);
  for (std::ptrdiff_t j = 0; j < 4; ++j) {
    const auto cut = [&](const std::vector<int32_t>& v) {
      return std::vector<int32_t>(v.begin() + j * quarter, v.begin() + (j + 1) * quarter);
    };
    parts.push_back({cut(whole[0].ids), cut(whole[0].labels), 4, 9});
  }
  const StepStats x = accumulate_gradients(a.engine, stage(a.engine, whole)),
                  y = accumulate_gradients(b.engine, stage(b.engine, parts));
  EXPECT_EQ(x.valid_labels, y.valid_labels);
  EXPECT_NEAR(x.loss, y.loss, 1e-6);
  EXPECT_NEAR(x.grad_norm, y.grad_norm, 1e-5 * x.grad_norm);
  EXPECT_EQ(x.load, y.load);
  for (size_t i = 0; i < a.engine.params.all().size(); ++i) {
    const Parameter &p = a.engine.params.all()[i], &q = b.engine.params.all()[i];
    double difference = 0, norm = 0;
    for (int64_t n = 0; n < p.grad.numel(); ++n) {
      difference += std::pow(p.grad.as<float>()[n] - q.grad.as<float>()[n], 2.0);
      norm += std::pow(p.grad.as<float>()[n], 2.0);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << p.row.name;
  }
}

TEST(AccumulateGradients, StartsFromZeroAndRepeatsItself) {
  Fixture f(small_run());
  const std::vector<MicroBatch> batches = random_batches(f.engine.plan);
  const StepStats x = accumulate_gradients(f.engine, stage(f.engine, batches)),
                  y = accumulate_gradients(f.engine, stage(f.engine, batches));
  EXPECT_EQ(x.loss, y.loss);
  EXPECT_EQ(x.grad_norm, y.grad_norm);
  EXPECT_EQ(x.valid_labels, 16 * 9);
  ASSERT_EQ(x.load.size(), 2u);  // MoE layers
  for (const std::vector<double>& load : x.load) EXPECT_EQ(std::accumulate(load.begin(), load.end(), 0.0), 16 * 9 * 2);
}

// Whatever the layout, experts get the tokens of the forced choices; the router still learns from the loss.
TEST(AccumulateGradients, ForcesLoads) {
  RunSpec run = small_run();
  run.moe.forced_load = ForcedLoad::hot_rank;
  run.moe.aux_loss_coef = run.moe.z_loss_coef = 0;
  const ModelSpec model = build_native_model(run.native);
  constexpr int64_t kStep = 3;
  std::vector<std::vector<double>> expected;
  for (int64_t layer = 1; layer < 3; ++layer) {
    std::vector<double>& counts = expected.emplace_back(6);
    for (const int32_t e : forced_choices(run, model.layers[1].moe, {kStep, layer, 0, 16 * 9}))
      ++counts[static_cast<size_t>(e)];
  }
  for (const int64_t ep : {1, 2})
    run_ranks(2, [&](Comm& world, Stream&) {
      RunSpec layout = run;
      layout.mesh.ep = ep;
      layout.mesh.pp = 3 - ep;
      Engine engine(model, layout, world, 1);
      engine.params.initialise(1, engine.stream);
      engine.params.repack(engine.stream);
      const StepStats stats =
          accumulate_gradients(engine, stage(engine, random_batches(engine.plan)), forced_taps(engine.plan, kStep));
      EXPECT_EQ(stats.load, expected);
      const std::string router = "layers.2.moe.router";
      if (!engine.params.has(router)) return;
      const TensorView grad = engine.params.find(router).grad;
      EXPECT_TRUE(std::any_of(grad.as<float>(), grad.as<float>() + grad.numel(), [](float g) { return g != 0; }));
    });
}

TEST(AccumulateGradients, RefusesAStepWithoutLabels) {
  Fixture f(small_run());
  std::vector<MicroBatch> batches = random_batches(f.engine.plan);
  for (MicroBatch& batch : batches) std::fill(batch.labels.begin(), batch.labels.end(), -100);
  EXPECT_TRUE(contains(error_of([&] { accumulate_gradients(f.engine, stage(f.engine, batches)); }), "no label"));
}

TEST(ApplyUpdate, MovesEveryTrainedParameterAgainstItsGradient) {
  Fixture f(small_run());
  const StepStats stats = accumulate_gradients(f.engine, stage(f.engine, random_batches(f.engine.plan)));
  std::vector<float> before;
  for (const Parameter& p : f.engine.params.all()) before.push_back(p.master.as<float>()[0]);
  apply_update(f.engine, stats, {1e-3, 1});
  size_t i = 0;
  for (const Parameter& p : f.engine.params.all()) {
    const float gradient = p.grad.as<float>()[0], moved = p.master.as<float>()[0] - before[i++];
    // The first step of AdamW has the size of the learning rate; decay adds a little.
    if (std::abs(gradient) < 1e-6f) continue;
    EXPECT_NEAR(moved, gradient > 0 ? -1e-3 : 1e-3, 2e-4) << p.row.name;
  }
}

// ZeRO cuts the experts of the other rank, which it packs; this one has nothing to gather.
TEST(ApplyUpdate, LeavesOutRanksWithoutExperts) {
  run_ranks(4, [](Comm& world, Stream&) {
    RandomLayout layout = layout_of(2, 1, nullptr);
    layout.run.train.dtype = DType::bf16;
    const std::unique_ptr<Engine> blocks = trained_engine(layout, world);
    Placements placements = *blocks->plan.placements;
    placements.layers.back() = make_block_placement({placements.layers.back().experts(), 0});
    layout.placements = std::make_shared<Placements>(placements);
    const std::unique_ptr<Engine> on_one_rank = trained_engine(layout, world);
    EXPECT_EQ(take_step(*on_one_rank, 3), take_step(*blocks, 3));
  });
}

TEST(FindNonFinite, NamesTheTensor) {
  Fixture f(small_run());
  StepStats stats = accumulate_gradients(f.engine, stage(f.engine, random_batches(f.engine.plan)));
  EXPECT_EQ(find_non_finite(f.engine, stats), "");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    float& victim = f.engine.params.find("layers.1.moe.router").grad.as<float>()[7];
    const float good = victim;
    victim = bad;
    stats.grad_norm = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(contains(find_non_finite(f.engine, stats), "rank 0: layers.1.moe.router"));
    victim = good;
  }
  stats.grad_norm = 1;
  stats.total_loss = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(contains(find_non_finite(f.engine, stats), "loss inf"));
}

TEST(StepStats, ImbalanceIsTheFullestExpertOverTheMean) {
  StepStats stats;
  EXPECT_EQ(stats.imbalance(), 0);
  stats.load = {{1, 1, 1, 1}, {0, 6, 1, 1}, {0, 0}};
  EXPECT_DOUBLE_EQ(stats.imbalance(), 3);
}

}  // namespace
}  // namespace mw::test
