// One MoE layer that keeps less for its backward pass: the same bits, and how many exchanges they cost.
#include "moe/layer_helpers.h"

namespace mw::test {
namespace {

struct Mode {
  const char* name;
  MoeRecompute recompute;
  int64_t row_exchanges, weight_exchanges;  // of forward and backward
};

// Dispatch and combine, and the same for gradients. Sending again adds one: backward needs no expert outputs, so there
// is no second combine. Gate weights go out once, with the rows that backward reads, and their gradients come back.
constexpr Mode kModes[] = {{"none", {false, false, false}, 4, 2},
                           {"selective", {false, false, true}, 4, 2},
                           {"moe", {false, true, true}, 5, 2},
                           {"full", {true, true, true}, 5, 2}};

LayerOptions options_of(const char* transport, DType dtype, int64_t chunks, const MoeRecompute& recompute) {
  LayerOptions o;
  o.transport = transport;
  o.dtype = dtype;
  o.row_chunks = chunks;
  o.moe.recompute = recompute;
  return o;
}

TEST(MoeRecompute, GivesTheSameBits) {
  const AuxGradient aux{std::vector<float>(7, 0.1f), 0.01f};
  for (const char* transport : {"in_place", "flat", "padded"})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int64_t chunks : {1, 2, 3})
        for (const double capacity : {0.0, 0.7}) {
          TestLayer::Outcome expected;
          for (const Mode& mode : kModes) {
            LayerOptions o = options_of(transport, dtype, chunks, mode.recompute);
            o.moe.capacity_factor = capacity;
            TestLayer layer(o);
            for (const int64_t tokens : {37, 12}) layer.run(tokens, {}, aux);  // what others left in its memory
            const TestLayer::Outcome got = layer.run(o.tokens, {}, aux);
            if (mode.recompute.hidden) {
              const std::string what = fmt::format("{} {} {} {} chunks", mode.name, transport, name_of(dtype), chunks);
              EXPECT_EQ(got.out, expected.out) << what;
              EXPECT_EQ(got.d_x, expected.d_x) << what;
              EXPECT_EQ(got.gradients, expected.gradients) << what;
              EXPECT_EQ(got.statistics.counts, expected.statistics.counts) << what;
              EXPECT_EQ(got.statistics.prob_sums, expected.statistics.prob_sums) << what;
              EXPECT_EQ(got.statistics.dropped, expected.statistics.dropped) << what;
            } else {
              expected = got;
            }
          }
        }
}

TEST(MoeRecompute, CostsOneMoreExchangeOfRowsAtMost) {
  for (const char* transport : {"flat", "padded"})
    for (const int64_t chunks : {1, 3})
      for (const Mode& mode : kModes) {
        TestLayer layer(options_of(transport, DType::f32, chunks, mode.recompute));
        layer.run(37);
        const std::string what = fmt::format("{} {} {} chunks", mode.name, transport, chunks);
        const CountingComm& comm = layer.comm();
        EXPECT_EQ(comm.exchanges(TestLayer::kWidth * 4), chunks * mode.row_exchanges) << what;
        EXPECT_EQ(comm.exchanges(4), chunks * mode.weight_exchanges) << what;
        EXPECT_EQ(comm.starts, chunks * mode.row_exchanges) << what;  // weights leave with rows
        // Counts are exchanged once: what is sent again is known.
        EXPECT_EQ(comm.exchanges(8), 1) << what;
        EXPECT_EQ(comm.maxima, std::string(transport) == "padded" ? 1 : 0) << what;
      }
}

// No rows at all, and all rows on one expert.
TEST(MoeRecompute, OfHostileLoads) {
  for (const char* transport : {"flat", "padded"}) {
    TestLayer keeps(options_of(transport, DType::f32, 3, {})),
        recomputes(options_of(transport, DType::f32, 3, {true, true, true}));
    std::vector<int32_t> first;
    for (int64_t t = 0; t < 37; ++t) first.insert(first.end(), {0, 1, 2});
    for (const int64_t tokens : {37, 0}) {
      const std::vector<int32_t> ids = tokens > 0 ? first : std::vector<int32_t>{};
      const TestLayer::Outcome expected = keeps.run(tokens, ids), got = recomputes.run(tokens, ids);
      EXPECT_EQ(got.d_x, expected.d_x) << transport << " " << tokens;
      EXPECT_EQ(got.gradients, expected.gradients) << transport << " " << tokens;
    }
  }
}

}  // namespace
}  // namespace mw::test
