// Generation with a key/value cache gives, token by token, the logits of a forward pass over the whole context.
#include "train/loop/generation.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ops/cross_entropy.h"
#include "support/thread_comm.h"
#include "train/convert/hf_weights.h"
#include "train/helpers.h"
#include "train/loop/token_choice.h"

namespace mw::test {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

RunSpec generating(RunSpec run, int64_t prompts, int64_t seq_len) {
  run.train.global_batch = prompts;
  run.train.micro_batches = 1;
  run.train.seq_len = seq_len;
  run.moe.aux_loss_coef = run.moe.z_loss_coef = 0;
  run.sample.tokens = 1;
  run.sample.sequences = prompts;
  run.data.document_mask = prompts > 1;
  return run;
}

// Of the token after the context, by one forward pass without a cache. Empty on ranks without the head.
std::vector<float> whole_logits(Engine& engine, const std::vector<int32_t>& context) {
  MicroBatch whole{context, std::vector<int32_t>(context.size(), kIgnoreLabel), 1, std::ssize(context)};
  if (engine.plan.run.data.document_mask) whole.document_starts.assign(context.size(), 0);
  evaluate(engine, stage(engine, std::span(&whole, 1)).front());
  if (!engine.plan.stages.back().has_head) return {};
  return engine.model->logits(std::ssize(context) - 1, 1);
}

std::ptrdiff_t most_likely(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// `steps` tokens that are no choice of the model's, so that ranks without logits know them.
void check_generation(Engine& engine, const Prompts& prompts, int64_t steps) {
  const auto vocab = static_cast<size_t>(engine.plan.model.vocab);
  const int64_t most = engine.plan.run.train.seq_len;
  Generation generation(engine, prompts);
  Prompts contexts = prompts;
  size_t length = 0;
  for (const std::vector<int32_t>& prompt : prompts) length = std::max(length, prompt.size());
  for (int64_t t = 0; t < steps; ++t, ++length) {
    if (std::cmp_greater(length, most)) length = static_cast<size_t>(most / 2);
    const std::vector<float> logits = generation.next_logits();
    Prompts added;
    for (size_t b = 0; b < prompts.size(); ++b) {
      std::vector<int32_t>& context = contexts[b];
      context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(std::min(length, context.size())));
      const std::vector<float> expected = whole_logits(engine, context);
      ASSERT_EQ(logits.size(), expected.size() * prompts.size());
      if (!expected.empty()) {
        const std::span<const float> got = std::span(logits).subspan(b * vocab, vocab);
        EXPECT_EQ(most_likely(got), most_likely(expected)) << "token " << t << " of prompt " << b;
        for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(got[i], expected[i], 2e-4 * (1 + std::abs(expected[i])));
      }
      added.push_back({static_cast<int32_t>((7 * t + 3 * static_cast<int64_t>(b) + 1) % 20)});
      context.push_back(added.back().front());
    }
    generation.add(added);
  }
}

RunSpec latent(int64_t q_rank) {
  RunSpec run = latent_run();
  run.native.q_rank = q_rank;
  return run;
}

void check_on(Comm& world, RunSpec run, const Prompts& prompts, int64_t seq_len, int64_t steps) {
  run = generating(run, std::ssize(prompts), seq_len);
  run.train.global_batch *= world.size() / (run.mesh.tp * run.mesh.pp);
  Engine engine(build_native_model(run.native), run, world, 1);
  engine.params.initialise(3, engine.stream);
  refresh_weights(engine);
  check_generation(engine, prompts, steps);
}

// Of one prompt and of several; the context becomes longer than the cache twice.
TEST(Generation, EqualsForwardOverTheContext) {
  const std::unique_ptr<Comm> world = make_self_comm();
  for (const RunSpec& run : {small_run(), latent(0), latent(11)}) {
    check_on(*world, run, {{3, 1, 4, 1, 5}}, 9, 16);
    check_on(*world, run, {{3}, {2, 7, 1, 8}, {5, 5}}, 9, 16);
    check_on(*world, run, {{3, 1, 4, 1, 5, 9, 2}}, 5, 4);  // a prompt that is too long
  }
}

// Tokens that come several at a time, as in a conversation.
TEST(Generation, TakesSeveralTokensAtATime) {
  const std::unique_ptr<Comm> world = make_self_comm();
  const RunSpec run = generating(small_run(), 1, 20);
  Engine engine(build_native_model(run.native), run, *world, 1);
  engine.params.initialise(3, engine.stream);
  refresh_weights(engine);
  Generation generation(engine, {{4, 2}});
  generation.next_logits();
  generation.add({{7, 1, 6}});
  const std::vector<float> got = generation.next_logits(), expected = whole_logits(engine, {4, 2, 7, 1, 6});
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5);
}

TEST(Generation, OnSeveralRanks) {
  struct Layout {
    int64_t pp, tp, ep;
  };
  for (const Layout& layout : {Layout{2, 1, 1}, Layout{1, 2, 2}, Layout{1, 1, 2}})
    run_ranks(2, [&](Comm& world, Stream&) {
      RunSpec run = small_run();
      run.mesh.pp = layout.pp;
      run.mesh.tp = layout.tp;
      run.mesh.ep = layout.ep;
      check_on(world, run, {{3, 1, 4}, {2}}, 9, 8);
    });
}

// Every family that can be imported, with its windows, norms, biases and rotations.
TEST(Generation, OfEveryFamily) {
  const std::unique_ptr<Comm> world = make_self_comm();
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MOEWRIGHT_SOURCE_DIR "/tests/golden/models")) {
    SCOPED_TRACE(entry.path().native());
    RunSpec run;
    run.hf_dir = entry.path();
    run.train.dtype = DType::f32;
    run = generating(run, 2, 24);
    Engine engine(load_model_spec(run), run, *world, 1);
    import_hf_weights(engine, run.hf_dir);
    check_generation(engine, {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {11, 12, 13}}, 13);
    ++models;
  }
  EXPECT_GE(models, 30);
}

// Without sample.tokens there is no cache to grow.
TEST(Generation, NeedsACache) {
  const std::unique_ptr<Comm> world = make_self_comm();
  RunSpec run = generating(small_run(), 1, 9);
  run.sample.tokens = 0;
  Engine engine(build_native_model(run.native), run, *world, 1);
  EXPECT_THROW(Generation(engine, {{1}}).next_logits(), Error);
}

int32_t choice(const SampleSpec& spec, float uniform) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.3f), std::log(0.2f)};
  return choose_token(logits, spec, uniform);
}

TEST(ChooseToken, DrawsByProbability) {
  SampleSpec spec;
  spec.temperature = 1;
  spec.top_k = 0;
  EXPECT_EQ(choice(spec, 0.39f), 1);
  EXPECT_EQ(choice(spec, 0.41f), 2);
  EXPECT_EQ(choice(spec, 0.71f), 3);
  EXPECT_EQ(choice(spec, 0.9999f), 0);
  spec.temperature = 0;
  EXPECT_EQ(choice(spec, 0.9999f), 1);
}

TEST(ChooseToken, KeepsTheMostLikely) {
  SampleSpec spec;
  spec.temperature = 1;
  spec.top_k = 2;
  EXPECT_EQ(choice(spec, 0.56f), 1);  // 0.4 of 0.7
  EXPECT_EQ(choice(spec, 0.58f), 2);
  EXPECT_EQ(choice(spec, 0.9999f), 2);
  spec.top_k = 0;
  spec.top_p = 0.75;  // three have it
  EXPECT_EQ(choice(spec, 0.9999f), 3);
  spec.top_p = 0.65;
  EXPECT_EQ(choice(spec, 0.9999f), 2);
  spec.top_k = 3;  // of whose 0.9 two have 0.65, as above
  EXPECT_EQ(choice(spec, 0.9999f), 2);
  spec.top_p = 0;
  EXPECT_EQ(choice(spec, 0.9999f), 1);
}

TEST(ChooseToken, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const size_t at : {size_t{0}, size_t{2}}) {
      std::vector<float> logits = {0.1f, 0.4f, 0.3f};
      logits[at] = bad;
      EXPECT_THROW(choose_token(logits, {}, 0.5f), Error) << bad << " at " << at;
    }
}

}  // namespace
}  // namespace mw::test
