// gather_tokens beside closed forms and layers that hold whole experts; the transport matrix compares all else.
#include "moe/layer_helpers.h"
#include "support/thread_comm.h"

namespace mw::test {
namespace {

using Outcome = TestLayer::Outcome;

LayerOptions gathering_tokens(int64_t chunks) {
  LayerOptions o;
  o.transport = "gather_tokens";
  o.row_chunks = chunks;
  o.seq_len = 4;
  return o;
}

// Tokens of each rank; the second has none.
int64_t tokens_on(int rank) { return rank == 1 ? 0 : 12 + 4 * rank; }

// Alone, a rank has slices that are whole: only the sum of a token's rows is rounded before its base is added.
TEST(GatherTokens, AloneGivesTheGradientsOfResidentExperts) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LayerOptions o = gathering_tokens(3);
    o.dtype = dtype;
    o.shared_width = 0;
    const Outcome got = TestLayer(o).run(37);
    o.transport = "in_place";
    const Outcome expected = TestLayer(o).run(37);
    EXPECT_EQ(got.rows, expected.rows);
    for (const char* name : {"up", "down", "router"}) EXPECT_EQ(got.gradients.at(name), expected.gradients.at(name));
    EXPECT_EQ(got.d_x, expected.d_x);
  }
}

// A second pass finds what the first one left, and other tokens than it had.
TEST(GatherTokens, ServesPassesOfOtherSizes) {
  for (const int64_t chunks : {1, 2, 3})
    run_ranks(3, [&](Comm& world, Stream& stream) {
      TestLayer layer(gathering_tokens(chunks), world, stream), fresh(gathering_tokens(chunks), world, stream);
      layer.run(tokens_on(world.rank()));
      const int64_t tokens = tokens_on((world.rank() + 1) % 3);
      const Outcome again = layer.run(tokens), expected = fresh.run(tokens);
      EXPECT_EQ(again.out, expected.out);
      EXPECT_EQ(again.d_x, expected.d_x);
      EXPECT_EQ(again.gradients, expected.gradients);
    });
}

// A token goes to the two other ranks with its choices and gate weights, and their sums come back; in the backward pass
// its gradient goes there, and sums and gate gradients come back.
TEST(GatherTokens, SendsWhatItsClosedFormSays) {
  constexpr int64_t kWidth = TestLayer::kWidth;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool again : {false, true})
      for (const double capacity : {0.0, 1.0})
        for (const int64_t chunks : {1, 2, 5})
          run_ranks(3, [&](Comm& world, Stream& stream) {
            LayerOptions o = gathering_tokens(chunks);
            o.dtype = dtype;
            o.moe.recompute.dispatched = again;
            o.moe.capacity_factor = capacity;
            o.nodes.ranks_per_node = 2;
            TestLayer layer(o, world, stream);
            const Trace::SentBytes before = stream.trace().sent_bytes();
            const Outcome got = layer.run(tokens_on(world.rank()));
            const Trace::SentBytes after = stream.trace().sent_bytes();
            const int64_t row = kWidth * size_of(dtype), k = o.top_k, own = tokens_on(world.rank()),
                          near = world.rank() == 2 ? 0 : tokens_on(1 - world.rank()),
                          far = tokens_on(0) + tokens_on(1) + tokens_on(2) - own - near;
            const int64_t there = 2 * row + 8 * k + (again ? row + 8 * k : 0), back = 2 * row + 4 * k;
            EXPECT_EQ(after.all - before.all, 2 * own * there + (near + far) * back);
            const int64_t far_ranks = world.rank() == 2 ? 2 : 1;
            EXPECT_EQ(after.far - before.far, far_ranks * own * there + far * back);
            EXPECT_EQ(got.statistics.dropped > 0, capacity > 0 && own > 0);
          });
}

TEST(GatherTokens, ComputesTheRowsOfAllRanks) {
  for (const int64_t chunks : {1, 3})
    run_ranks(3, [&](Comm& world, Stream& stream) {
      TestLayer layer(gathering_tokens(chunks), world, stream);
      const Outcome got = layer.run(tokens_on(world.rank()));
      EXPECT_EQ(got.rows, (tokens_on(0) + tokens_on(1) + tokens_on(2)) * 3);
    });
}

TEST(GatherTokens, AddsToGradientsWhereAStepHasSeveralMicroBatches) {
  run_ranks(2, [&](Comm& world, Stream& stream) {
    LayerOptions o = gathering_tokens(1);
    const Outcome of_one = TestLayer(o, world, stream).run(12);
    o.micro_batches = 2;
    const Outcome of_two = TestLayer(o, world, stream).run(12);
    for (const char* name : {"up", "down"})
      for (size_t i = 0; i < of_one.gradients.at(name).size(); ++i)
        ASSERT_EQ(of_two.gradients.at(name)[i], 2 * of_one.gradients.at(name)[i]);
  });
}

}  // namespace
}  // namespace mw::test
