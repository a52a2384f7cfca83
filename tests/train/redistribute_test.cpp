// `redistribute` against a saved and loaded checkpoint, over ranks that are threads.
#include "train/redistribute.h"

#include <random>

#include "engine/step.h"
#include "support/thread_comm.h"
#include "train/checkpoint/checkpoint.h"
#include "train/engines.h"

namespace mw::test {
namespace {

struct Pair {
  int ranks = 1;
  RandomLayout from, to;
  std::string text() const { return fmt::format("{} ranks {} -> {}", ranks, from.text, to.text); }
};

Pair random_pair(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  RunSpec base = small_run();
  if (below(2) == 0) base.train.dtype = DType::bf16;
  base.native.tie_embeddings = below(3) == 0;
  if (seed % 3 == 0) base.train.optimizer = Optimizer::muon;
  if (below(2) == 0) {  // a selection bias is a state without moments
    base.native.score = ScoreFunction::sigmoid;
    base.native.selection_bias = true;
  }
  Pair pair;
  pair.ranks = 1 + static_cast<int>(seed % 8);
  pair.from = random_layout(base, pair.ranks, static_cast<int64_t>(seed / 2 % 2), random);
  pair.to = random_layout(base, pair.ranks, static_cast<int64_t>(seed % 2), random);
  return pair;
}

class RandomPair : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomPair, EqualsSaveAndLoad) {
  const Pair pair = random_pair(GetParam());
  const ScratchDir dir;
  SCOPED_TRACE(pair.text());
  run_ranks(pair.ranks, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> from = trained_engine(pair.from, world), moved = make_engine(pair.to, world),
                                  loaded = make_engine(pair.to, world);
    moved->params.initialise(99, moved->stream);  // nothing of these may stay
    // Buffers of one round, of several, and of single elements for each peer.
    const int64_t buffer_bytes = GetParam() % 3 == 0 ? kRedistributeBytes : GetParam() % 3 == 1 ? 4099 : 1000;
    const Redistributed done = redistribute(*from, *moved, buffer_bytes);
    EXPECT_LE(done.received_bytes, done.rounds * std::max<int64_t>(buffer_bytes, 4 * pair.ranks));
    EXPECT_LE(done.sent_bytes, done.rounds * std::max<int64_t>(buffer_bytes, 4 * pair.ranks));
    save_checkpoint(*from, dir.path(), {2, 32}, 2);
    load_checkpoint(*loaded, dir.path() + "/step-00000002");
    expect_same_states(*moved, *loaded);
    EXPECT_EQ(take_step(*moved, 3), take_step(*loaded, 3));
    expect_same_states(*moved, *loaded);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, RandomPair, testing::Range<uint64_t>(0, 20));

// The same layout and placement: nothing travels.
TEST(Redistribute, KeepsWhatARankHolds) {
  for (const int64_t zero : {0, 1})
    run_ranks(4, [&](Comm& world, Stream&) {
      const RandomLayout layout = layout_of(2, zero, nullptr);
      const std::unique_ptr<Engine> from = trained_engine(layout, world), to = make_engine(layout, world);
      const Redistributed done = redistribute(*from, *to);
      EXPECT_EQ(done.sent_bytes + done.received_bytes + done.rounds, 0);
      EXPECT_GT(done.kept_bytes, 0);
      expect_same_states(*from, *to);
    });
}

// Two experts change places: each of two ranks sends one, with its moments.
TEST(Redistribute, SwapsTwoExperts) {
  run_ranks(2, [&](Comm& world, Stream&) {
    const RandomLayout blocks = layout_of(2, 0, nullptr);
    const ModelSpec model = build_native_model(blocks.run.native);
    Placements swapped = make_block_placements(model, 2);
    swapped.version = 1;
    std::swap(swapped.layers[1].homes[0], swapped.layers[1].homes[5]);
    const std::unique_ptr<Engine> from = trained_engine(blocks, world),
                                  to = make_engine(layout_of(2, 0, std::make_shared<Placements>(swapped)), world);
    const Redistributed done = redistribute(*from, *to);
    const int64_t elements = model.layers[1].moe.width * model.width * 3;  // gate, up and down
    EXPECT_EQ(done.sent_bytes, elements * 4 * 3);                          // master weights and two moments
    EXPECT_EQ(done.received_bytes, done.sent_bytes);
    EXPECT_EQ(done.rounds, 1);
  });
}

// Whole experts become slices of all experts, and whole again.
TEST(Redistribute, CutsExpertsIntoSlices) {
  for (const int64_t zero : {0, 1})
    run_ranks(4, [&](Comm& world, Stream&) {
      RandomLayout slices = layout_of(4, zero, nullptr);
      slices.run.moe.transport = "gather_tokens";
      slices.run.mesh.width_shares = "1,2,4,1";
      const RandomLayout blocks = layout_of(2, zero, nullptr);
      const std::unique_ptr<Engine> from = trained_engine(blocks, world), cut = make_engine(slices, world),
                                    whole = make_engine(blocks, world);
      redistribute(*from, *cut);
      redistribute(*cut, *whole);
      expect_same_states(*from, *whole);
      EXPECT_NEAR(take_step(*cut, 3), take_step(*from, 3), 1e-6);
    });
}

// A placement changes who computes an expert, not what it computes.
TEST(Redistribute, TrainingGoesOnWithTheSameLosses) {
  run_ranks(2, [&](Comm& world, Stream&) {
    const ModelSpec model = build_native_model(small_run().native);
    const std::unique_ptr<Engine> stays = trained_engine(layout_of(2, 0, nullptr), world),
                                  moved = make_engine(layout_of(2, 0, random_placements(model, 2, 7)), world);
    redistribute(*stays, *moved);
    for (int64_t step = 3; step < 6; ++step)
      EXPECT_EQ(take_step(*moved, step), take_step(*stays, step)) << "step " << step;
  });
}

TEST(Redistribute, RefusesAnotherModel) {
  RandomLayout other = layout_of(1, 0, nullptr);
  other.run.native.expert_width = 12;
  run_ranks(1, [&](Comm& world, Stream&) {
    const std::unique_ptr<Engine> from = make_engine(layout_of(1, 0, nullptr), world), to = make_engine(other, world);
    const std::string message = error_of([&] { redistribute(*from, *to); }, Exit::config);
    EXPECT_TRUE(contains(message, "w_up [6, 2, 10, 16]") && contains(message, "[6, 2, 12, 16]")) << message;
  });
}

TEST(Redistribute, EnginesRefuseReplicasWithoutSlots) {
  const ModelSpec model = build_native_model(small_run().native);
  Placements replicas = make_block_placements(model, 2);
  replicas.layers[1].homes[0].push_back({1, 3});
  const auto shared = std::make_shared<Placements>(replicas);
  EXPECT_NO_THROW(validate(replicas, model, 2));
  const std::string message = error_of(
      [&] { run_ranks(2, [&](Comm& world, Stream&) { make_engine(layout_of(2, 0, shared), world); }); }, Exit::config);
  EXPECT_TRUE(contains(message, "more replicas on a rank than moe.replica_slots = 0")) << message;
}

// A checkpoint says where experts were, and loads where they are elsewhere.
TEST(Redistribute, CheckpointsRecordThePlacement) {
  const ScratchDir dir;
  run_ranks(2, [&](Comm& world, Stream&) {
    const ModelSpec model = build_native_model(small_run().native);
    const SharedPlacements placed = random_placements(model, 2, 5);
    const std::unique_ptr<Engine> from = trained_engine(layout_of(2, 0, placed), world),
                                  to = make_engine(layout_of(2, 0, nullptr), world);
    save_checkpoint(*from, dir.path(), {2, 32}, 2);
    const CheckpointIndex index = load_checkpoint(*to, dir.path() + "/step-00000002");
    ASSERT_NE(index.placements, nullptr);
    EXPECT_EQ(*index.placements, *placed);
    save_checkpoint(*to, dir.path(), {3, 48}, 2);
    EXPECT_EQ(read_checkpoint_index(dir.path() + "/step-00000003").placements, nullptr);  // blocks
    RandomLayout slices = layout_of(2, 0, nullptr);
    slices.run.moe.transport = "gather_tokens";
    const std::unique_ptr<Engine> cut = make_engine(slices, world);
    load_checkpoint(*cut, dir.path() + "/step-00000003");
    save_checkpoint(*cut, dir.path(), {4, 64}, 2);
    EXPECT_EQ(read_checkpoint_index(dir.path() + "/step-00000004").placements, nullptr);
  });
}

}  // namespace
}  // namespace mw::test
