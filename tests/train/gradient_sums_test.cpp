// The step with groups that sum beside backward: every gradient once, when it is complete, and before it is read.
#include "engine/grad_sync.h"
#include "support/delayed_comm.h"
#include "support/thread_comm.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

constexpr int kDp = 4, kEdp = 2;  // powers of two: sums are exact

// An engine that has the whole model and data of its own world of one.
struct Alone {
  explicit Alone(const RunSpec& run) : engine(build_native_model(run.native), run, *world, 1) {
    engine.params.initialise(1, engine.stream);
    engine.params.repack(engine.stream);
  }
  StepStats step() { return accumulate_gradients(engine, stage(engine, random_batches(engine.plan))); }

  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
};

// The same as one of kDp replicas, all with the same data: the labels of a step are kDp times as many.
struct Replicated : Alone {
  Replicated(const RunSpec& run, Comm& replicas, const std::string& gpu_library) : Alone(run) {
    const int rank = replicas.rank();
    engine.comms.dp = std::make_unique<DelayedComm>(replicas.split(0, rank), started);
    engine.comms.edp = std::make_unique<DelayedComm>(replicas.split(rank / kEdp, rank), started);
    engine.comms.gpu_library = gpu_library;
  }
  std::vector<StartedSum> started;
};

using Gradients = std::map<std::string, std::vector<float>>;

Gradients gradients_of(Engine& engine) {
  Gradients gradients;
  for (const Parameter& p : engine.params.all())
    if (p.row.trained) gradients[p.row.name].assign(p.grad.as<float>(), p.grad.as<float>() + p.grad.numel());
  return gradients;
}

// What the replicas must have of the gradient that one process has.
float share_of(const ParamRow& row, Fault fault) {
  if (fault == Fault::skip_router_sum && row.role == ParamRole::router) return 1.0f / kDp;
  return row.expert ? static_cast<float>(kEdp) / kDp : 1.0f;
}

void expect_exact_sums(RunSpec run, const std::string& gpu_library) {
  run.moe.aux_loss_coef = run.moe.z_loss_coef = 0;  // their gradients count the tokens of all ranks
  run.train.device = DeviceChoice::cpu;             // the sums read at once what a GPU has still to compute
  Alone alone(run);
  alone.step();
  const Gradients expected = gradients_of(alone.engine);
  run_ranks(kDp, [&](Comm& world, Stream&) {
    Replicated many(run, world, gpu_library);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const StepStats stats = many.step();
      EXPECT_EQ(stats.grad_norm, global_gradient_norm(many.engine.stream, many.engine.params, many.engine.comms));
      for (const Parameter& p : many.engine.params.all()) {
        if (!p.row.trained) continue;
        const std::vector<float>& whole = expected.at(p.row.name);
        const float share = share_of(p.row, run.fault);
        int64_t wrong = 0;
        for (size_t i = 0; i < whole.size(); ++i) wrong += p.grad.as<float>()[i] == share * whole[i] ? 0 : 1;
        EXPECT_EQ(wrong, 0) << p.row.name << " of rank " << world.rank();
      }
    }
  });
}

TEST(AccumulateGradients, SumsOverReplicasBesideBackward) {
  for (const bool tied : {false, true})
    for (const int64_t micro_batches : {1, 4}) {
      RunSpec run = small_run();
      run.native.tie_embeddings = tied;
      run.train.micro_batches = micro_batches;
      expect_exact_sums(run, "test");
    }
}

TEST(AccumulateGradients, SumsOverReplicasAfterBackwardOnTheHost) { expect_exact_sums(small_run(), ""); }

TEST(AccumulateGradients, LeavesOutTheRouterWhereTheFaultSaysSo) {
  for (const char* library : {"", "test"}) {
    RunSpec run = small_run();
    run.fault = Fault::skip_router_sum;
    expect_exact_sums(run, library);
  }
}

// In runs of one micro-batch on Hopper, products have added squares of expert gradients, and these are not read.
TEST(AccumulateGradients, HasTheNormOfTheGradientsThatItLeaves) {
  for (const DType of_experts : {DType::f32, DType::bf16})
    for (const int64_t micro_batches : {1, 2}) {
      RunSpec run = small_run();
      run.train.dtype = DType::bf16;
      run.expert_gradients = of_experts;
      run.train.micro_batches = micro_batches;
      Alone alone(run);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const double norm = alone.step().grad_norm;
        EXPECT_GT(norm, 0);
        EXPECT_EQ(norm, global_gradient_norm(alone.engine.stream, alone.engine.params, alone.engine.comms))
            << micro_batches << " micro-batches, " << word_of(of_experts);
      }
    }
}

// The tests above would also pass if every sum began at the end.
TEST(AccumulateGradients, StartsSumsBeforeTheEmbeddingIsComplete) {
  run_ranks(kDp, [](Comm& world, Stream&) {
    Replicated many(small_run(), world, "test");
    many.step();
    const float* embed = many.engine.params.find("embed").grad.as<float>();
    const auto last = std::find_if(many.started.begin(), many.started.end(),
                                   [&](const StartedSum& sum) { return sum.values.data() == embed; });
    EXPECT_GE(last - many.started.begin(), 2);
    EXPECT_EQ(many.started.end() - last, 1);
  });
}

}  // namespace
}  // namespace mw::test
