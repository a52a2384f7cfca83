#include "core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace mw::test {
namespace {

TEST(ExactSum, HoldsEverySquareOfAFloat) {
  for (const float x : {0.0F, 1.0F, 3.0F, 0.1F, std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::min(), 1e-20F, 1e19F, std::numeric_limits<float>::max()}) {
    const double square = static_cast<double>(x) * static_cast<double>(x);
    ExactSum sum;
    sum.add(square);
    EXPECT_EQ(sum.value(), square) << x;
    sum.add(square);
    EXPECT_EQ(sum.value(), 2 * square) << x;
  }
}

// In doubles the order matters: small values are lost beside large ones.
TEST(ExactSum, DoesNotDependOnTheOrderOrTheParts) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-60, 60), mantissa(1, 2);
  std::vector<double> values;
  for (int i = 0; i < 3000; ++i) values.push_back(std::ldexp(mantissa(random), static_cast<int>(exponent(random))));
  double first = -1;
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> parts(1 + static_cast<size_t>(round));
    for (const double value : values) parts[random() % parts.size()].add(value);
    ExactSum sum;
    for (const ExactSum& part : parts) sum.add(part);
    if (round == 0) first = sum.value();
    EXPECT_EQ(sum.value(), first);
  }
  ExactSum two;
  two.add(std::ldexp(1, 52));
  for (int i = 0; i < 1024; ++i) two.add(std::ldexp(1, -10));
  EXPECT_EQ(two.value(), std::ldexp(1, 52) + 1);
}

TEST(ExactSum, ManyAddsCarry) {
  ExactSum sum;
  for (int i = 0; i < 1'000'000; ++i) sum.add(0x1.fffffffffffffp+31);
  sum.normalise();
  EXPECT_DOUBLE_EQ(sum.value(), 1e6 * 0x1.fffffffffffffp+31);
}

TEST(ExactSum, RemembersWhatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    ExactSum sum, other;
    sum.add(1.0);
    sum.add(bad);
    other.add(2.0);
    other.add(sum);
    EXPECT_TRUE(std::isnan(other.value()));
  }
}

}  // namespace
}  // namespace mw::test
