// One MoE layer over every transport of one rank: the same numbers, whatever rows there are.
#include <cmath>

#include "formats/helpers.h"
#include "moe/layer_helpers.h"
#include "moe/transports/transport_padded.h"

namespace mw::test {
namespace {

using Outcome = TestLayer::Outcome;

void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.out, b.out) << what;
  EXPECT_EQ(a.d_x, b.d_x) << what;
  EXPECT_EQ(a.gradients, b.gradients) << what;
  EXPECT_EQ(a.statistics.counts, b.statistics.counts) << what;
  EXPECT_EQ(a.statistics.dropped, b.statistics.dropped) << what;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(a[i] - b[i], 2.0);
    norm += std::pow(b[i], 2.0);
  }
  return std::sqrt(sum) / std::max(std::sqrt(norm), 1e-30);
}

void expect_near(const Outcome& a, const Outcome& b, double tolerance, const std::string& what) {
  EXPECT_LE(relative_difference(a.out, b.out), tolerance) << what;
  EXPECT_LE(relative_difference(a.d_x, b.d_x), tolerance) << what;
  for (const auto& [name, values] : a.gradients)
    EXPECT_LE(relative_difference(values, b.gradients.at(name)), tolerance) << what << ": " << name;
  EXPECT_EQ(a.statistics.counts, b.statistics.counts) << what;
  EXPECT_EQ(a.statistics.dropped, b.statistics.dropped) << what;
}

// Loads that hurt: balanced, all on the first experts, one expert without rows, all but one without.
std::vector<std::vector<int32_t>> routings(int64_t tokens, int64_t experts, int64_t k) {
  std::vector<std::vector<int32_t>> list = {{}};
  for (const int kind : {0, 1, 2}) {
    list.emplace_back();
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < k; ++i)
        list.back().push_back(static_cast<int32_t>(kind == 0   ? (t + i) % experts
                                                   : kind == 1 ? i
                                                               : 1 + (5 * t + i) % (experts - 1)));
  }
  return list;
}

std::string name_of_case(const LayerOptions& o, size_t routing) {
  return fmt::format("{} {} chunks {} routing {} activation {}", o.transport, name_of(o.dtype), o.row_chunks, routing,
                     static_cast<int>(o.activation));
}

TEST(Transport, FlatOfOneRankIsInPlaceToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Activation activation : {Activation::swiglu, Activation::gelu, Activation::relu}) {
      LayerOptions o;
      o.dtype = dtype;
      o.activation = activation;
      const auto all = routings(o.tokens, o.experts, o.top_k);
      for (size_t i = 0; i < all.size(); ++i) {
        o.transport = "in_place";
        o.row_chunks = 1;
        const Outcome expected = TestLayer(o).run(o.tokens, all[i]);
        EXPECT_EQ(expected.rows, o.tokens * o.top_k);
        o.transport = "flat";
        for (const int64_t chunks : {1, 2, 3, 50}) {
          o.row_chunks = chunks;
          const Outcome flat = TestLayer(o).run(o.tokens, all[i]);
          expect_same_bits(flat, expected, name_of_case(o, i));
          EXPECT_EQ(flat.rows, expected.rows);
        }
      }
    }
}

TEST(Transport, PaddedRowsAddNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LayerOptions o;
    o.dtype = dtype;
    const auto all = routings(o.tokens, o.experts, o.top_k);
    for (size_t i = 0; i < all.size(); ++i) {
      o.transport = "in_place";
      const Outcome expected = TestLayer(o).run(o.tokens, all[i]);
      o.transport = "padded";
      for (const int64_t chunks : {1, 3}) {
        o.row_chunks = chunks;
        const Outcome padded = TestLayer(o).run(o.tokens, all[i]);
        // Rows may stand elsewhere in a product's panels, where sums have another order.
        expect_near(padded, expected, dtype == DType::f32 ? 2e-6 : 1e-2, name_of_case(o, i));
        EXPECT_EQ(padded.rows % o.experts, 0);
        EXPECT_GE(padded.rows, expected.rows);
      }
    }
  }
}

TEST(Transport, CapacityDropsTheSameRowsEverywhere) {
  LayerOptions o;
  o.tokens = 40;
  o.seq_len = 10;
  o.moe.capacity_factor = 1.0;
  o.moe.capacity_per_sequence = true;
  const Outcome expected = TestLayer(o).run(o.tokens);
  EXPECT_GT(expected.statistics.dropped, 0);
  EXPECT_EQ(expected.rows, o.tokens * o.top_k - expected.statistics.dropped);
  o.transport = "flat";
  o.row_chunks = 3;
  expect_same_bits(TestLayer(o).run(o.tokens), expected, "flat");
  o.transport = "padded";
  expect_near(TestLayer(o).run(o.tokens), expected, 2e-6, "padded");
}

TEST(Transport, NoTokensAreLegal) {
  for (const char* transport : {"in_place", "flat", "padded"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      LayerOptions o;
      o.transport = transport;
      o.dtype = dtype;
      o.row_chunks = 2;
      TestLayer layer(o);
      const Outcome none = layer.run(0);
      EXPECT_EQ(none.rows, 0) << transport;
      EXPECT_TRUE(none.out.empty());
      for (const auto& [name, values] : none.gradients)
        for (const float g : values) ASSERT_EQ(g, 0.0f) << transport << ": " << name;
      // The same layer serves tokens afterwards, and fewer than it has room for.
      LayerOptions fresh = o;
      fresh.seq_len = o.seq_len;
      expect_same_bits(layer.run(5), TestLayer(fresh).run(5), fmt::format("{} after none", transport));
    }
}

TEST(Transport, SharedExpertsJoinEveryToken) {
  LayerOptions o;
  const Outcome with = TestLayer(o).run(o.tokens);
  o.shared_width = 0;
  const Outcome without = TestLayer(o).run(o.tokens);
  EXPECT_GT(relative_difference(with.out, without.out), 1e-2);
  EXPECT_EQ(with.statistics.counts, without.statistics.counts);
  EXPECT_EQ(with.gradients.at("up"), without.gradients.at("up"));
}

TEST(Transport, ExpertsWithoutRowsGetNoGradient) {
  LayerOptions o;
  for (const char* transport : {"in_place", "flat", "padded"}) {
    o.transport = transport;
    const Outcome out = TestLayer(o).run(o.tokens, routings(o.tokens, o.experts, o.top_k)[3]);  // expert 0 left out
    const std::vector<float>& g = out.gradients.at("up");
    const size_t per_expert = g.size() / static_cast<size_t>(o.experts);
    for (size_t i = 0; i < per_expert; ++i) ASSERT_EQ(g[i], 0.0f) << transport;
    for (int64_t e = 1; e < o.experts; ++e) {
      double norm = 0;
      for (size_t i = 0; i < per_expert; ++i) norm += std::abs(g[static_cast<size_t>(e) * per_expert + i]);
      EXPECT_GT(norm, 0) << transport << ": expert " << e;
    }
  }
}

TEST(Transport, AuxiliaryGradientsReachRouterAndInput) {
  LayerOptions o;
  const Outcome plain = TestLayer(o).run(o.tokens);
  AuxGradient aux;
  aux.z_scale = 0.1f;
  for (int64_t e = 0; e < o.experts; ++e) aux.d_prob.push_back(0.01f * static_cast<float>(e));
  for (const char* transport : {"in_place", "flat"}) {
    o.transport = transport;
    const Outcome out = TestLayer(o).run(o.tokens, {}, aux);
    EXPECT_EQ(out.out, plain.out);
    EXPECT_GT(relative_difference(out.gradients.at("router"), plain.gradients.at("router")), 1e-3);
    EXPECT_GT(relative_difference(out.d_x, plain.d_x), 1e-5);
    EXPECT_EQ(out.gradients.at("up"), plain.gradients.at("up"));
  }
}

TEST(Transport, RefusesReplicas) {
  ExpertPlacement placement = make_block_placement(2, 1);
  placement.homes[0].push_back({0, 2});
  const auto comm = make_self_comm();
  error_of([&] { PaddedTransport(*comm, placement, {}, {}, {}, {}, {}); }, Exit::unsupported);
}

}  // namespace
}  // namespace mw::test
