// A layer serves a transport whose chunks are of tokens and whose weights are gathered, without knowing it.
#include "moe/layer_helpers.h"

namespace mw::test {
namespace {

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

void expect_close(const TestLayer::Outcome& got, const TestLayer::Outcome& expected, const std::string& what) {
  EXPECT_EQ(got.rows, expected.rows) << what;
  EXPECT_LT(largest_difference(got.out, expected.out), 1e-5) << what;
  EXPECT_LT(largest_difference(got.d_x, expected.d_x), 1e-5) << what;
  for (const auto& [name, values] : expected.gradients)
    EXPECT_LT(largest_difference(got.gradients.at(name), values), 1e-4) << what << name;
}

TEST(TokenChunks, GiveWhatInPlaceGives) {
  for (const bool hidden : {false, true})
    for (const bool defer_up : {false, true})
      for (const int64_t tokens : {0, 1, 2, 37}) {
        if (hidden && defer_up) continue;
        LayerOptions o;
        o.moe.recompute.hidden = hidden;
        o.moe.defer_up = defer_up;
        TestLayer in_place(o);
        o.transport = "token_chunks";
        for (const int64_t chunks : {1, 2, 3, 5}) {
          o.row_chunks = chunks;
          TestLayer layer(o);
          expect_close(layer.run(tokens), in_place.run(tokens), fmt::format("{} tokens, {} chunks: ", tokens, chunks));
        }
      }
}

TEST(TokenChunks, AreDispatchedAgain) {
  LayerOptions o;
  TestLayer in_place(o);
  o.transport = "token_chunks";
  o.row_chunks = 4;
  o.moe.recompute.dispatched = o.moe.recompute.hidden = true;
  TestLayer layer(o);
  expect_close(layer.run(37), in_place.run(37), "");
  EXPECT_EQ(layer.calls().dispatched, 4);
  EXPECT_EQ(layer.calls().dispatched_again, 4);
  EXPECT_EQ(layer.calls().dispatched_back, 4);
  EXPECT_EQ(layer.calls().most_in_flight, 2);
  EXPECT_EQ(layer.calls().in_flight, 0);
}

TEST(TokenChunks, GatherWeightsAndHearWhenGradientsAreDone) {
  LayerOptions o;
  o.transport = "token_chunks";
  o.row_chunks = 3;
  for (const bool defer_up : {false, true}) {
    o.moe.defer_up = defer_up;
    o.prefetch = !defer_up;  // else the layer asks for weights that nobody began to gather
    TestLayer layer(o);
    layer.run(37);
    EXPECT_EQ(layer.calls().begun_forward, 1);
    EXPECT_EQ(layer.calls().begun_backward, 1);
    EXPECT_EQ(layer.calls().done, (std::vector<int>{2, 2, 2}));
    EXPECT_EQ(layer.calls().finished, defer_up ? 2 : 1);
  }
}

}  // namespace
}  // namespace mw::test
