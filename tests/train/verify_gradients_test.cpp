// Rounding noise of gradients: all that is left of those whose terms cancel, and hardly anything of the others.
#include "train/verify/verify_gradients.h"

#include <cmath>

#include "train/helpers.h"

namespace mw::test {
namespace {

struct Step {
  explicit Step(const RunSpec& run) : engine(build_native_model(run.native), run, *world, 1) {
    engine.params.initialise(1, engine.stream);
    refresh_weights(engine);
  }
  // document_tokens: of every document.
  std::vector<GradientDifference> measure(int64_t document_tokens) {
    std::vector<MicroBatch> micro_batches = random_batches(engine.plan);
    for (MicroBatch& batch : micro_batches)
      for (int64_t t = 0; t < engine.plan.batch.tokens(); ++t) {
        const int64_t here = t % batch.seq_len;
        batch.document_starts.push_back(static_cast<int32_t>(here - here % document_tokens));
      }
    const std::vector<Batch> batches = stage(engine, micro_batches);
    stats = accumulate_gradients(engine, batches);
    std::vector<GradientDifference> gradients = compare_gradients(*world, &engine, engine);
    const std::vector<float> before = all_values();
    measure_rounding_noise(engine, batches, {}, 1, gradients);
    EXPECT_EQ(all_values(), before) << "weights or gradients are not what they were";
    return gradients;
  }
  std::vector<float> all_values() {
    std::vector<float> values;
    for (const Parameter& p : engine.params.all())
      for (int64_t i = 0; i < p.numel(); ++i) {
        values.push_back(p.master_at(i));
        if (p.row.trained) values.push_back(value_at(p.grad, i));
      }
    return values;
  }

  std::unique_ptr<Comm> world = make_self_comm();
  Engine engine;
  StepStats stats;
};

RunSpec run_with_documents() {
  RunSpec run = small_run();
  run.data.document_mask = true;
  return run;
}

bool is_of_scores(const std::string& name) {
  for (const char* end : {".attn.wq", ".attn.wk", ".attn.q_norm", ".attn.k_norm"})
    if (name.ends_with(end)) return true;
  return false;
}

// With one key, a token's attention is 1 whatever its score: the gradients of scores are zero but for rounding. Where
// the compiler adds all dot products in one order, as without vectors, they are zero, and so is their noise.
TEST(RoundingNoise, IsAllThatRemainsOfAGradientThatCancels) {
  RunSpec run = run_with_documents();
  run.native.head_dim = 16;  // of shorter heads all dot products are added in the same order, and nothing remains
  Step step(run);
  int64_t cancelled = 0;
  for (const GradientDifference& d : step.measure(1)) {
    EXPECT_EQ(d.difference, 0) << d.name;
    if (!is_of_scores(d.name)) {
      EXPECT_LT(d.noise, 2e-5 * d.norm) << d.name;
      continue;
    }
    ++cancelled;
    EXPECT_LT(d.norm, 1e-6 * step.stats.grad_norm) << d.name;
    EXPECT_GE(d.noise, 0.3 * d.norm) << d.name;
    EXPECT_LE(d.noise, 5 * d.norm) << d.name;
  }
  EXPECT_EQ(cancelled, 4 * 3);
}

TEST(RoundingNoise, IsSmallWhereATokenHasTwoKeys) {
  Step step(run_with_documents());
  for (const GradientDifference& d : step.measure(2)) {
    EXPECT_GT(d.norm, 0) << d.name;
    EXPECT_LT(d.noise, 2e-5 * d.norm) << d.name;
    EXPECT_GT(d.noise, 0) << d.name;
  }
}

// A gradient of less than 1e-4 of the global norm: an error of 1e-3 of it is found, though the noise of a gradient that
// cancels can be as large beside the global norm.
TEST(RoundingNoise, ExcusesNoErrorInASmallGradient) {
  RunSpec run = run_with_documents();
  run.native.init_std = 0.003;
  Step step(run);
  std::vector<GradientDifference> gradients = step.measure(2);
  const Tolerances limits = tolerances(run, build_native_model(run.native));
  EXPECT_EQ(judge_step(step.stats, step.stats, gradients, limits).verdict, Verdict::passed);
  int64_t small = 0;
  for (GradientDifference& d : gradients) {
    if (d.norm > 1e-4 * step.stats.grad_norm) continue;
    ++small;
    d.difference = 1e-3 * d.norm;
    EXPECT_EQ(judge_step(step.stats, step.stats, {d}, limits).verdict, Verdict::failed) << d.name;
  }
  EXPECT_GT(small, 0);
}

}  // namespace
}  // namespace mw::test
