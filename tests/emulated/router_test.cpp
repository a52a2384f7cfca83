// The router of GPUs: the very sources, run on the CPU, against plain loops.
#include "ops/gpu/router.cu"  // with the stand-in of launch.h
#include "ops/gpu/router_backward.cu"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

// Logits on a grid of eighths, so that many tie.
std::vector<float> drawn_logits(int64_t count) {
  const RngKey key = make_rng_key(5, "logits");
  std::vector<float> logits;
  for (int64_t i = 0; i < count; ++i) logits.push_back(std::round(8 * normal_at(key, static_cast<uint64_t>(i))) / 8);
  return logits;
}

// The gradients of sum over t and k of (k + 1) w[t, k], where w are the renormalised weights of the choices, and of
// sum over t and e of d_prob[e] p[t, e] + z_scale logsumexp^2.
void check_gradient(const RouterRule& rule, std::vector<float>& logits, std::vector<int32_t>& ids, float z_scale) {
  const int64_t E = rule.experts, K = rule.top_k, T = std::ssize(ids) / K;
  std::vector<float> d_weights, d_prob, d_logits(logits.size());
  for (int64_t i = 0; i < T * K; ++i) d_weights.push_back(static_cast<float>(i % K + 1));
  for (int64_t e = 0; e < E; ++e) d_prob.push_back(static_cast<float>(e % 3));
  emulated::EmulatedStream emulated(E * 8);
  gpu::route_backward(emulated.stream, rule, {logits.data(), DType::f32, {T, E}}, {ids.data(), DType::i32, {T, K}},
                      {d_weights.data(), DType::f32, {T, K}}, d_prob, z_scale, {d_logits.data(), DType::f32, {T, E}});
  for (int64_t t = 0; t < T; ++t) {
    const float* x = logits.data() + t * E;
    double powers = 0, chosen = 0, product = 0, mean = 0;
    for (int64_t e = 0; e < E; ++e) powers += std::exp(double{x[e]});
    for (int64_t e = 0; e < E; ++e) mean += double{d_prob[static_cast<size_t>(e)]} * std::exp(double{x[e]}) / powers;
    for (int64_t k = 0; k < K; ++k) {
      const double power = std::exp(double{x[ids[static_cast<size_t>(t * K + k)]]});
      chosen += power;
      product += static_cast<double>(k + 1) * power;
    }
    std::vector<double> expected(static_cast<size_t>(E));
    for (size_t e = 0; e < expected.size(); ++e)
      expected[e] =
          std::exp(double{x[e]}) / powers * (double{d_prob[e]} - mean + 2 * double{z_scale} * std::log(powers));
    for (int64_t k = 0; k < K; ++k) {
      const int32_t id = ids[static_cast<size_t>(t * K + k)];
      expected[static_cast<size_t>(id)] +=
          std::exp(double{x[id]}) / chosen * (static_cast<double>(k + 1) - product / chosen);
    }
    for (size_t e = 0; e < expected.size(); ++e)
      EXPECT_NEAR(d_logits[static_cast<size_t>(t * E) + e], expected[e], 1e-5) << "token " << t << ", expert " << e;
  }
}

void check(int64_t T, int64_t E, int64_t K) {
  SCOPED_TRACE(testing::Message() << T << " tokens, " << E << " experts, top " << K);
  std::vector<float> logits = drawn_logits(T * E), weights(static_cast<size_t>(T * K)), gaps(static_cast<size_t>(T));
  std::vector<int32_t> ids(static_cast<size_t>(T * K)), expected_ids;
  std::vector<double> sums(static_cast<size_t>(2 * E + 1), NAN);  // counts, sums of p, z_sum: one copy
  std::vector<double> expected_counts(static_cast<size_t>(E)), expected_sums = expected_counts;
  double expected_z = 0;
  const auto counts = std::span(sums).first(expected_counts.size());
  const auto prob_sums = std::span(sums).subspan(counts.size(), counts.size());
  emulated::EmulatedStream emulated(router_workspace_bytes(T, E));
  const RouterRule rule{.experts = E, .top_k = K, .renormalise = true};
  gpu::route(emulated.stream, rule, {logits.data(), DType::f32, {T, E}}, {}, false, {ids.data(), DType::i32, {T, K}},
             {weights.data(), DType::f32, {T, K}}, {counts, prob_sums, &sums.back()}, {gaps.data(), DType::f32, {T}});
  for (int64_t t = 0; t < T; ++t) {
    const float* x = logits.data() + t * E;
    std::vector<int32_t> order(static_cast<size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    double powers = 0, chosen = 0;
    for (int64_t e = 0; e < E; ++e) powers += std::exp(double{x[e]});
    for (int64_t e = 0; e < E; ++e) expected_sums[static_cast<size_t>(e)] += std::exp(double{x[e]}) / powers;
    for (int64_t k = 0; k < K; ++k) chosen += std::exp(double{x[order[static_cast<size_t>(k)]]});
    for (int64_t k = 0; k < K; ++k) {
      const int32_t id = order[static_cast<size_t>(k)];
      expected_ids.push_back(id);
      ++expected_counts[static_cast<size_t>(id)];
      EXPECT_NEAR(weights[static_cast<size_t>(t * K + k)], std::exp(double{x[id]}) / chosen, 1e-6);
    }
    const double last = std::exp(double{x[order[static_cast<size_t>(K - 1)]]}) / powers;
    const double gap = K < E ? last - std::exp(double{x[order[static_cast<size_t>(K)]]}) / powers : INFINITY;
    if (K < E) EXPECT_NEAR(gaps[static_cast<size_t>(t)], gap, 1e-6);
    else EXPECT_EQ(gaps[static_cast<size_t>(t)], INFINITY);
    expected_z += std::log(powers) * std::log(powers);
  }
  EXPECT_EQ(ids, expected_ids);
  EXPECT_EQ(std::vector<double>(counts.begin(), counts.end()), expected_counts);
  EXPECT_NEAR(sums.back(), expected_z, 1e-6 * expected_z);
  for (size_t e = 0; e < prob_sums.size(); ++e) EXPECT_NEAR(prob_sums[e], expected_sums[e], 1e-6 * expected_sums[e]);
  check_gradient(rule, logits, ids, 0.1f);
}

// Lanes that own one to sixteen experts in registers, and ones that own more in memory; several chunks of tokens.
TEST(RouterOfGpus, ChoosesAsPlainLoops) {
  check(40, 5, 5);
  for (const int64_t E : {64, 65, 200, 384, 512, 513}) check(21, E, 8);
  check(1, 1000, 70);
  check(20, 1025, 9);
}

// Statistics that do not lie together; an id that is none is refused.
TEST(RouterOfGpus, ReplaysForcedIds) {
  const int64_t T = 21, E = 70, K = 3;
  std::vector<float> logits = drawn_logits(T * E), weights(static_cast<size_t>(T * K));
  std::vector<int32_t> ids;
  std::vector<double> counts(static_cast<size_t>(E), NAN), expected(static_cast<size_t>(E));
  double z_sum = NAN, expected_z = 0;
  for (int64_t i = 0; i < T * K; ++i) ++expected[static_cast<size_t>(ids.emplace_back(i * i % E))];
  for (int64_t t = 0; t < T; ++t) {
    double powers = 0;
    for (int64_t e = 0; e < E; ++e) powers += std::exp(double{logits[static_cast<size_t>(t * E + e)]});
    expected_z += std::log(powers) * std::log(powers);
  }
  const auto replay = [&] {
    emulated::EmulatedStream emulated(router_workspace_bytes(T, E));
    gpu::route(emulated.stream, {.experts = E, .top_k = K}, {logits.data(), DType::f32, {T, E}}, {}, true,
               {ids.data(), DType::i32, {T, K}}, {weights.data(), DType::f32, {T, K}}, {counts, {}, &z_sum}, {});
  };
  replay();
  EXPECT_EQ(counts, expected);
  EXPECT_NEAR(z_sum, expected_z, 1e-6 * expected_z);
  ids[40] = E;
  EXPECT_THROW(replay(), Error);
}

}  // namespace
}  // namespace mw::gpu
