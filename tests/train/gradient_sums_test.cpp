// The step with groups that sum beside backward: every gradient once, when it is complete, and before it is read.
#include "parallel/grad_sync.h"
#include "support/delayed_comm.h"
#include "train/helpers.h"

namespace mw::test {
namespace {

constexpr int kDp = 4, kEdp = 2;  // powers of two: sums are exact

struct Replicated {
  explicit Replicated(const RunSpec& run) : engine(build_native_model(run.native), run, *world, 1) {
    engine.params.initialise(1, engine.stream);
    engine.params.repack(engine.stream);
  }
  void replicate(const std::string& gpu_library) {
    engine.comms.dp = std::make_unique<DelayedComm>(kDp, started);
    engine.comms.edp = std::make_unique<DelayedComm>(kEdp, started);
    engine.comms.gpu_library = gpu_library;
  }
  StepStats step() { return accumulate_gradients(engine, stage(engine, random_batches(engine.plan))); }

  std::vector<StartedSum> started;
  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
};

void expect_exact_sums(RunSpec run, const std::string& gpu_library) {
  run.moe.aux_loss_coef = run.moe.z_loss_coef = 0;  // their gradients count the tokens of all ranks
  run.train.device = "cpu";                         // the sums read at once what a GPU has still to compute
  Replicated alone(run), many(run);
  many.replicate(gpu_library);
  alone.step();
  for (int repeat = 0; repeat < 2; ++repeat) {
    many.started.clear();
    const StepStats stats = many.step();
    EXPECT_EQ(stats.grad_norm, global_gradient_norm(many.engine.stream, many.engine.params, many.engine.comms));
    for (const Parameter& p : many.engine.params.all()) {
      if (!p.row.trained) continue;
      const float* expected = alone.engine.params.find(p.row.name).grad.as<float>();
      const bool skipped = run.fault == "skip_router_sum" && p.row.role == ParamRole::router;
      const auto factor = static_cast<float>(skipped ? 1 : p.row.expert ? kEdp : kDp);
      int64_t wrong = 0;
      for (int64_t i = 0; i < p.grad.numel(); ++i) wrong += p.grad.as<float>()[i] == factor * expected[i] ? 0 : 1;
      EXPECT_EQ(wrong, 0) << p.row.name;
    }
  }
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
    run.fault = "skip_router_sum";
    expect_exact_sums(run, library);
  }
}

// The tests above would also pass if every sum began at the end.
TEST(AccumulateGradients, StartsSumsBeforeTheEmbeddingIsComplete) {
  RunSpec run = small_run();
  Replicated many(run);
  many.replicate("test");
  many.step();
  const float* embed = many.engine.params.find("embed").grad.as<float>();
  const auto last = std::find_if(many.started.begin(), many.started.end(),
                                 [&](const StartedSum& sum) { return sum.values.data() == embed; });
  EXPECT_GE(last - many.started.begin(), 2);
  EXPECT_EQ(many.started.end() - last, 1);
}

}  // namespace
}  // namespace mw::test
