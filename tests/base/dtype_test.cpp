#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace mw::test {
namespace {

float float_of(uint32_t word) { return std::bit_cast<float>(word); }

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::i64), 8);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_EQ(size_of(DType::u16), 2);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(sizeof(bf16), 2u);
}

TEST(DType, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 x{static_cast<uint16_t>(bits)};
    const float wide = to_float(x);
    EXPECT_EQ(std::bit_cast<uint32_t>(wide), bits << 16);
    const uint16_t back = to_bf16(wide).bits;
    // A signalling NaN becomes quiet; everything else is unchanged.
    if (std::isnan(wide)) EXPECT_EQ(back, bits | 0x40) << bits;
    else EXPECT_EQ(back, bits);
  }
}

TEST(DType, HalvesOfAnFp32LoseNothing) {
  for (uint32_t upper = 0; upper < 65536; ++upper)
    for (const uint32_t lower : {0u, 1u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xfedcu, 0xffffu}) {
      const uint32_t word = (upper << 16) | lower;
      const float x = float_of(word);
      const SplitFloat parts = split_float(x);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(to_float(parts.near)) && std::isnan(join_float(parts.near, parts.rest))) << word;
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(join_float(parts.near, parts.rest)), word);
      // The nearest bf16: of a tie the one away from 0.
      if (lower == 0x8000) ASSERT_EQ(parts.near.bits, upper + 1) << word;
      else ASSERT_EQ(parts.near.bits, to_bf16(x).bits) << word;
    }
}

TEST(DType, RoundsTiesToEven) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (const uint32_t upper : {0x3f80u, 0x3f81u, 0x0000u, 0x0001u, 0x007fu, 0x7f7fu}) {
      const uint32_t word = sign | (upper << 16);
      const auto down = static_cast<uint16_t>(word >> 16);
      const auto up = static_cast<uint16_t>(down + 1);
      EXPECT_EQ(to_bf16(float_of(word | 0x7fff)).bits, down) << upper;  // just below half
      EXPECT_EQ(to_bf16(float_of(word | 0x8000)).bits, upper % 2 == 0 ? down : up) << upper;
      EXPECT_EQ(to_bf16(float_of(word | 0x8001)).bits, up) << upper;  // just above half
    }
  }
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // above the largest bf16: infinity
}

TEST(DType, KeepsNanAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(inf).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-inf).bits, 0xff80);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  // NaNs whose payload lies in the lower half alone, or would carry into the exponent.
  for (const uint32_t word : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f80ffffu}) {
    const bf16 x = to_bf16(float_of(word));
    EXPECT_TRUE(std::isnan(to_float(x))) << word;
    EXPECT_EQ(x.bits >> 15, word >> 31) << word;
  }
}

// With either half of the hash, as optimizers use it: for values of many kinds beside weights of many kinds, and for
// one value in many steps. `first` is what the hash is made of, `x` what is rounded.
TEST(DType, RoundingByChanceKeepsTheMean) {
  constexpr int64_t kCount = 200'000;
  const auto error_of = [](float x, uint32_t chance) {  // in units of the last place of bf16
    const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    const double rest = (std::bit_cast<uint32_t>(x) & 0xffffu) / 65536.0;
    return to_bf16_by_chance(x, chance).bits - below - rest;
  };
  std::mt19937 random(1);
  std::uniform_real_distribution<float> size(1e-5f, 1e-3f);
  const std::vector<std::pair<const char*, std::function<float()>>> weights = {
      {"fp32", [&] { return 20 * size(random) - 0.01f; }},
      {"bf16", [&] { return to_float(to_bf16(20 * size(random) - 0.01f)); }},
      {"one", [] { return 1.0f; }},
      {"zero", [] { return 0.0f; }}};
  for (const auto& [name, weight] : weights)
    for (const uint32_t seed : {1u, 2u, 100'000u}) {
      double of_first = 0, of_second = 0;
      for (int64_t i = 0; i < kCount; ++i) {
        const float first = 0.9f * to_float(to_bf16(size(random))) + 0.1f * size(random), second = first * size(random);
        const uint32_t chance = chance_of(first, weight(), seed);
        of_first += error_of(first, chance);
        of_second += error_of(second, chance >> 16);
      }
      // Five standard deviations of a mean of numbers up to 0.5 away from theirs.
      EXPECT_NEAR(of_first / kCount, 0.0, 0.006) << name << ", step " << seed;
      EXPECT_NEAR(of_second / kCount, 0.0, 0.006) << name << ", step " << seed;
    }
  for (const float first : {0.0f, 1.2345e-4f}) {  // of an expert without rows, the first moment is 0 in the end
    double error = 0;
    for (uint32_t step = 1; step <= kCount; ++step) error += error_of(3.21e-7f, chance_of(first, 0.0123f, step) >> 16);
    EXPECT_NEAR(error / kCount, 0.0, 0.006) << first;
  }
}

TEST(DType, ConvertsByTemplate) {
  EXPECT_EQ(from_float<float>(1.0f / 3), 1.0f / 3);
  EXPECT_EQ(from_float<bf16>(1.0f).bits, 0x3f80);
}

}  // namespace
}  // namespace mw::test
