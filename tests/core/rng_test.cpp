#include "core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace mw::test {
namespace {

using Words = std::array<uint32_t, 4>;

// Philox4x32-10 as published, with its whole 128-bit counter; `philox` uses the lower half of it.
Words reference_philox(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0], product1 = uint64_t{0xCD9E8D57u} * counter[2];
    const auto high0 = static_cast<uint32_t>(product0 >> 32), low0 = static_cast<uint32_t>(product0);
    const auto high1 = static_cast<uint32_t>(product1 >> 32), low1 = static_cast<uint32_t>(product1);
    counter = {high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0};
  }
  return counter;
}

// The known answers that the authors publish with Random123 (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference_philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference_philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(reference_philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  const uint64_t counters[] = {1, 0xffffffff, 0x100000000, 0x85a308d3243f6a88, ~uint64_t{0}};
  const RngKey keys[] = {{0, 0}, {1, 0}, {0, 1}, {0xa4093822, 0x299f31d0}, {~0u, ~0u}};
  for (const uint64_t c : counters)
    for (const RngKey k : keys)
      EXPECT_EQ(philox(k, c),
                reference_philox({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0}, {k.low, k.high}));
}

// Keys decide initial weights: a change would break the resumption of old runs.
TEST(RngKey, DependsOnSeedAndName) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const char* names[] = {"", "a", "b", "ab", "ba", "layers.0.attn.wq", "layers.1.attn.wq", "layers.0.attn.wk"};
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, ~uint64_t{0}})
    for (const char* name : names) {
      const RngKey key = make_rng_key(seed, name);
      EXPECT_TRUE(keys.emplace(key.low, key.high).second) << seed << " " << name;
      const RngKey again = make_rng_key(seed, std::string(name));
      EXPECT_EQ(again.low, key.low);
      EXPECT_EQ(again.high, key.high);
    }
}

TEST(Uniform, IsBelowOneAndEven) {
  const RngKey key = make_rng_key(7, "uniform");
  constexpr int kCount = 1 << 18;
  std::array<int, 16> buckets{};
  double sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const float u = uniform_at(key, static_cast<uint64_t>(i));
    ASSERT_TRUE(u >= 0.0f && u < 1.0f);
    sum += u;
    ++buckets[static_cast<size_t>(u * 16)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));  // five standard errors
  double chi = 0;
  for (const int n : buckets) chi += (n - kCount / 16.0) * (n - kCount / 16.0) / (kCount / 16.0);
  EXPECT_LT(chi, 44.3);  // 15 degrees of freedom, p = 1e-4
}

TEST(Uniform, IsAPureFunctionOfTheIndex) {
  const RngKey key = make_rng_key(3, "x");
  const float at_10 = uniform_at(key, 10);
  for (uint64_t i = 0; i < 40; ++i)
    EXPECT_EQ(uniform_at(key, i), static_cast<float>(philox(key, i / 4)[i % 4] >> 8) * 0x1p-24f);
  EXPECT_EQ(uniform_at(key, 10), at_10);
  EXPECT_NE(uniform_at(key, 0), uniform_at(key, uint64_t{1} << 34));  // counters beyond 32 bits are their own
}

TEST(Bits, UsesItsOwnCounterPerElement) {
  const RngKey key = make_rng_key(3, "bits");
  std::set<uint64_t> seen;
  uint64_t ones = 0;
  for (uint64_t i = 0; i < 4096; ++i) {
    const uint64_t bits = bits_at(key, i);
    seen.insert(bits);
    for (uint64_t b = bits; b != 0; b &= b - 1) ++ones;
  }
  EXPECT_EQ(seen.size(), 4096u);
  EXPECT_NEAR(static_cast<double>(ones), 4096 * 32.0, 5 * std::sqrt(4096 * 64 / 4.0));
}

TEST(Normal, HasTheMomentsOfANormal) {
  const RngKey key = make_rng_key(11, "normal");
  constexpr int kCount = 1 << 19;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, before = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_at(key, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    m1 += x, m2 += x * x, m3 += x * x * x, m4 += x * x * x * x;
    neighbours += x * before;
    before = x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  // Five standard errors: the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
  const double n = kCount, unit = 5 / std::sqrt(n);
  EXPECT_NEAR(m1 / n, 0, unit);
  EXPECT_NEAR(m2 / n, 1, unit * std::sqrt(2));
  EXPECT_NEAR(m3 / n, 0, unit * std::sqrt(15));
  EXPECT_NEAR(m4 / n, 3, unit * std::sqrt(96));
  EXPECT_NEAR(neighbours / n, 0, unit);  // the two of a Box-Muller pair are independent
  EXPECT_NEAR(beyond_two / n, 0.0455, unit * 0.21);
}

TEST(Normal, StreamsOfOtherNamesAreIndependent) {
  const RngKey a = make_rng_key(1, "layers.0.attn.wq"), b = make_rng_key(1, "layers.1.attn.wq");
  double product = 0;
  constexpr int kCount = 1 << 16;
  for (uint64_t i = 0; i < kCount; ++i) product += static_cast<double>(normal_at(a, i)) * normal_at(b, i);
  EXPECT_NEAR(product / kCount, 0, 5 / std::sqrt(kCount));
}

TEST(Normal, IsBoxMullerOfTheWordsOfACounter) {
  const RngKey key = make_rng_key(5, "words");
  int others = 0;
  for (uint64_t counter = 0; counter < 1 << 16; ++counter) {
    const auto words = philox(key, counter);
    for (uint64_t pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2 * std::log((static_cast<double>(words[pair]) + 1) * 0x1p-32));
      const double angle = 2 * 3.14159265358979323846 * static_cast<double>(words[pair + 1]) * 0x1p-32;
      const std::array expected = {radius * std::cos(angle), radius * std::sin(angle)};
      for (uint64_t i = 0; i < 2; ++i) {
        const float x = normal_at(key, 4 * counter + pair + i);
        ASSERT_NEAR(x, expected[i], 1.2e-7 * std::abs(expected[i]) + 1e-15) << counter;
        others += x == static_cast<float>(expected[i]) ? 0 : 1;
      }
    }
  }
  EXPECT_LE(others, 2);  // of 2^18: only where the library's last bit decides
}

TEST(Rng, NormalsOfManyAreThoseOfEach) {
  const RngKey key = make_rng_key(7, "many");
  for (const uint64_t begin : {uint64_t{0}, uint64_t{1}, uint64_t{6}, (uint64_t{1} << 40) + 3})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}}) {
      std::vector<float> many(count);
      fill_normal(key, begin, many);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(many[i], normal_at(key, begin + i)) << begin << " + " << i;
    }
}

}  // namespace
}  // namespace mw::test
