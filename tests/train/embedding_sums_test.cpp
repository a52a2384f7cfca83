// The gradient of an embedding whose rows are mostly zeros: sums of the rows that are not are those of the whole.
#include "engine/embedding_sums.h"

#include "engine/step.h"
#include "support/small_run.h"
#include "support/thread_comm.h"
#include "train/engines.h"

namespace mw::test {
namespace {

constexpr int64_t kVocab = 4001;  // a step of a rank has at most 16 * 9 tokens

RunSpec run_of(int64_t micro_batches = 4) {
  RunSpec run = small_run();
  run.native.vocab = kVocab;
  run.native.top_k = run.native.experts;  // room for the rows of all replicas
  run.train.micro_batches = micro_batches;
  run.moe.aux_loss_coef = run.moe.z_loss_coef = 0;  // their gradients count the tokens of all ranks
  return run;
}

// Tokens of a rank: a few that all ranks have, many that some have.
std::vector<MicroBatch> batches_of(const Plan& plan, int64_t step) {
  std::vector<MicroBatch> batches = random_batches(plan);
  int64_t i = 0;
  for (MicroBatch& batch : batches)
    for (int32_t& id : batch.ids) {
      const int64_t place = i++ + 100 * step + 70 * plan.coords.dp;
      id = static_cast<int32_t>(i % 5 == 0 ? place % 3 : place * 13 % plan.model.vocab);
    }
  return batches;
}

std::unique_ptr<Engine> engine_of(const RunSpec& run, Comm& world) {
  std::unique_ptr<Engine> engine = make_engine({run, nullptr, ""}, world);
  engine->params.initialise(3, engine->stream);
  refresh_weights(*engine);
  return engine;
}

bool sums_rows(Engine& engine, std::span<const Batch> batches) {
  EmbeddingSums sums(engine, batches);
  std::vector<int64_t> counts = sums.counts();
  engine.comms.dp->all_reduce_sum(std::span(counts));
  sums.agree(counts);
  return sums.by_rows();
}

// The gradient of the whole embedding that a process has for the same batches, if replicas have as many labels.
std::vector<float> gradient_alone(RunSpec run, const Plan& plan, int64_t step) {
  run.mesh = {};
  run.train.global_batch /= plan.mesh.dp;
  const std::unique_ptr<Comm> world = make_self_comm();
  const std::unique_ptr<Engine> engine = engine_of(run, *world);
  accumulate_gradients(*engine, stage(*engine, batches_of(plan, step)));
  std::vector<float> values = read_values<float>(engine->stream, engine->params.find("embed").grad);
  for (float& value : values) value /= static_cast<float>(plan.mesh.dp);
  return values;
}

struct SumLayout {
  int64_t zero, tp, pp, ep;
  int replicas;
};

// Element by element the sums of what replicas would have alone, whatever is left over from the step before.
void expect_sums_of_rows(const SumLayout& layout) {
  RunSpec run = run_of(2);
  run.mesh.zero = layout.zero;
  run.mesh.tp = layout.tp;
  run.mesh.pp = layout.pp;
  run.mesh.ep = layout.ep;
  run_ranks(static_cast<int>(layout.replicas * layout.tp * layout.pp), [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = engine_of(run, world);
    for (int64_t step = 0; step < 2; ++step) {
      std::vector<float> whole = gradient_alone(run, engine->plan, step);
      engine->comms.dp->all_reduce_sum(std::span(whole));
      const std::vector<Batch> batches = stage(*engine, batches_of(engine->plan, step));
      EXPECT_EQ(sums_rows(*engine, batches), engine->params.has("embed"));
      accumulate_gradients(*engine, batches);
      if (!engine->params.has("embed")) continue;
      const Parameter& embed = engine->params.find("embed");
      const std::vector<float> found = read_values<float>(engine->stream, embed.owned_grad());
      const int64_t begin =
          vocab_part(engine->plan.model, layout.tp, engine->plan.coords.tp).begin * engine->plan.model.width +
          embed.owned.begin;
      int64_t wrong = 0, zeros = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        const float expected = whole[static_cast<size_t>(begin) + i];
        wrong += std::abs(found[i] - expected) <= 1e-5f * std::abs(expected) + 1e-6f ? 0 : 1;
        zeros += found[i] == 0 ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << "rank " << world.rank() << " of step " << step;
      EXPECT_TRUE(found.empty() || zeros > std::ssize(found) / 4);
    }
  });
}

TEST(EmbeddingSums, ReplicasAddTheRowsOfAll) {
  for (const SumLayout& layout : {SumLayout{0, 1, 1, 1, 2}, {1, 1, 1, 1, 2}, {0, 1, 1, 2, 4}, {1, 1, 1, 2, 4}})
    expect_sums_of_rows(layout);
}

TEST(EmbeddingSums, PartsOfTheVocabularyAndStagesAddTheirRows) {
  for (const SumLayout& layout : {SumLayout{0, 2, 1, 1, 2}, {1, 2, 1, 2, 2}, {1, 1, 2, 1, 2}})
    expect_sums_of_rows(layout);
}

TEST(EmbeddingSums, ReplicasHaveTheSameBits) {
  RunSpec run = run_of(2);
  std::vector<std::vector<float>> found(4);
  run_ranks(4, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> engine = engine_of(run, world);
    const std::vector<Batch> batches = stage(*engine, batches_of(engine->plan, 0));
    EXPECT_TRUE(sums_rows(*engine, batches));
    accumulate_gradients(*engine, batches);
    found[static_cast<size_t>(world.rank())] = read_values<float>(engine->stream, engine->params.find("embed").grad);
  });
  for (const std::vector<float>& of_rank : found) EXPECT_EQ(of_rank, found.front());
}

TEST(EmbeddingSums, ReplicasAgreeOnWhatPays) {
  RunSpec run = run_of(2);
  run.native.vocab = 300;
  for (const bool zero : {false, true}) {
    run.mesh.zero = zero ? 1 : 0;
    run_ranks(2, [&](Comm& world, Stream&) {
      const std::unique_ptr<Engine> engine = engine_of(run, world);
      std::vector<MicroBatch> batches = batches_of(engine->plan, 0);
      int32_t next = 0;
      for (MicroBatch& batch : batches)
        for (int32_t& id : batch.ids) id = world.rank() == 0 ? 7 : next++ * 2 % 299;
      const std::vector<Batch> staged = stage(*engine, batches);
      EXPECT_EQ(EmbeddingSums(*engine, staged).counts()[2 * static_cast<size_t>(world.rank())],
                world.rank() == 0 ? 1 : 72);
      const auto decides = [&](std::vector<int64_t> counts) {
        EmbeddingSums sums(*engine, staged);
        sums.agree(counts);
        return sums.by_rows();
      };
      const int64_t most = zero ? 75 : 150;  // rows of both replicas: half of what the whole gradient moves
      EXPECT_TRUE(decides({1, 1000, most, 1000}));
      EXPECT_FALSE(decides({1, 1000, most + 1, 1000}));
      EXPECT_TRUE(decides({1, 2 * most, most, 1000}));
      EXPECT_FALSE(decides({1, 2 * most - 1, most, 1000}));  // one replica lacks room
      EXPECT_TRUE(decides({0, 1000, 0, 1000}));
    });
  }
}

TEST(EmbeddingSums, TiedEmbeddingsAndSingleProcessesHaveNone) {
  RunSpec tied = run_of(2);
  tied.native.tie_embeddings = true;
  const auto sums = [](const RunSpec& run, Comm& world) {
    const std::unique_ptr<Engine> engine = engine_of(run, world);
    return sums_rows(*engine, stage(*engine, batches_of(engine->plan, 0)));
  };
  EXPECT_FALSE(sums(run_of(2), *make_self_comm()));
  run_ranks(2, [&](Comm& world, Stream&) {
    EXPECT_FALSE(sums(tied, world));
    EXPECT_TRUE(sums(run_of(2), world));
  });
}

}  // namespace
}  // namespace mw::test
