// `redistribute` against a saved and loaded checkpoint, over ranks that are threads.
#include "engine/redistribute.h"

#include <random>

#include "engine/step.h"
#include "support/random_layout.h"
#include "support/thread_comm.h"
#include "train/checkpoint/checkpoint.h"
#include "train/helpers.h"

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

std::unique_ptr<Engine> make_engine(const RandomLayout& layout, Comm& world) {
  return std::make_unique<Engine>(build_native_model(layout.run.native), layout.run, world, 1, NodePlace{},
                                  layout.placements);
}

double take_step(Engine& engine, int64_t step) {
  const StepStats stats = accumulate_gradients(engine, stage(engine, random_batches(engine.plan)));
  apply_update(engine, stats, {1e-3, step});
  return stats.total_loss;
}

// Two updates from random weights.
std::unique_ptr<Engine> trained_engine(const RandomLayout& layout, Comm& world) {
  std::unique_ptr<Engine> engine = make_engine(layout, world);
  engine->params.initialise(3, engine->stream);
  refresh_weights(*engine);
  take_step(*engine, 1);
  take_step(*engine, 2);
  return engine;
}

void expect_same_bits(const TensorView& a, const TensorView& b, const std::string& what) {
  ASSERT_EQ(a.data == nullptr, b.data == nullptr) << what;
  if (a.data == nullptr) return;  // no such tensor
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << what;
}

// Master weights, moments and packed forms of the parameters that a rank holds.
void expect_same_states(const Engine& a, const Engine& b) {
  ASSERT_EQ(a.params.all().size(), b.params.all().size());
  for (size_t i = 0; i < a.params.all().size(); ++i) {
    const Parameter &x = a.params.all()[i], &y = b.params.all()[i];
    for (const auto field : {&Parameter::master, &Parameter::rest, &Parameter::adam_m, &Parameter::adam_v})
      expect_same_bits(x.*field, y.*field, x.row.name);
    for (size_t w = 0; w < x.weights.size(); ++w) {
      expect_same_bits(x.weights[w].packed_forward, y.weights[w].packed_forward, x.row.name + " packed");
      expect_same_bits(x.weights[w].packed_backward, y.weights[w].packed_backward, x.row.name + " packed");
    }
  }
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

RandomLayout layout_of(int64_t ep, int64_t zero, SharedPlacements placements) {
  RandomLayout layout{small_run(), std::move(placements), ""};
  layout.run.mesh.ep = ep;
  layout.run.mesh.zero = zero;
  return layout;
}

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

// A placement changes who computes an expert, not what it computes. The gradient norm adds experts in the order of
// their slots: losses are equal to rounding.
TEST(Redistribute, TrainingGoesOnWithTheSameLosses) {
  run_ranks(2, [&](Comm& world, Stream&) {
    const ModelSpec model = build_native_model(small_run().native);
    const std::unique_ptr<Engine> stays = trained_engine(layout_of(2, 0, nullptr), world),
                                  moved = make_engine(layout_of(2, 0, random_placements(model, 2, 7)), world);
    redistribute(*stays, *moved);
    for (int64_t step = 3; step < 6; ++step)
      EXPECT_NEAR(take_step(*moved, step), take_step(*stays, step), 1e-6) << "step " << step;
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

TEST(Redistribute, EnginesRefuseReplicas) {
  const ModelSpec model = build_native_model(small_run().native);
  Placements replicas = make_block_placements(model, 2);
  replicas.layers[1].homes[0].push_back({1, 3});
  const auto shared = std::make_shared<Placements>(replicas);
  EXPECT_NO_THROW(validate(replicas, model, 2));
  const std::string message =
      error_of([&] { run_ranks(2, [&](Comm& world, Stream&) { make_engine(layout_of(2, 0, shared), world); }); },
               Exit::unsupported);
  EXPECT_TRUE(contains(message, "replicas")) << message;
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
