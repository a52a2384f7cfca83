#include "ops/cpu/simd_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace mw::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SimdMath, ExpAgreesWithDoubleOverItsWholeRange) {
  double worst = 0, worst_subnormal = 0;
  // Every 331st float of both signs: all exponents, mantissas spread by a stride prime to the powers of two.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 331) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= -104.0f && x <= 88.72f)) continue;
    const double expected = std::exp(static_cast<double>(x));
    const double difference = std::abs(static_cast<double>(fast_exp(x)) - expected);
    if (expected >= static_cast<double>(std::numeric_limits<float>::min()))
      worst = std::max(worst, difference / expected);
    else worst_subnormal = std::max(worst_subnormal, difference);
  }
  EXPECT_LT(worst, 2e-7);
  EXPECT_LE(worst_subnormal, static_cast<double>(std::numeric_limits<float>::denorm_min()));
}

TEST(SimdMath, ExpAtTheEdges) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-104.1f), 0.0f);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(-kInfinity), 0.0f);
  EXPECT_EQ(fast_exp(88.74f), kInfinity);
  EXPECT_EQ(fast_exp(1e30f), kInfinity);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(SimdMath, ExpInAVectorLoopGivesTheScalarBits) {
  std::vector<float> x(1003), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = -110.0f + 0.2f * static_cast<float>(i);
  for (size_t i = 0; i < x.size(); ++i) y[i] = fast_exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float input = x[i];
    EXPECT_EQ(y[i], fast_exp(input)) << x[i];
  }
}

TEST(SimdMath, Sigmoid) {
  for (float x = -87.0f; x < 100.0f; x += 0.0137f) {
    const double expected = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_LT(std::abs(static_cast<double>(fast_sigmoid(x)) - expected), 4e-7 * expected) << x;
  }
  EXPECT_EQ(fast_sigmoid(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(fast_sigmoid(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(fast_sigmoid(kInfinity), 1.0f);
}

}  // namespace
}  // namespace mw::cpu
