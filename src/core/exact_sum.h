// Sums of non-negative doubles without rounding: the result does not depend on the order in which they are added, nor
// on the ranks that add them.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace mw {

// A fixed-point number in limbs of 32 bits: limb i counts units of 2^(32 i - 352). It holds sums of squares of floats:
// these are multiples of 2^-298, and below 2^256 each.
class ExactSum {
 public:
  static constexpr int kLimbs = 23;  // the last one counts values that are not finite

  // The three limbs, from `first` on, that a value adds to. Zero, subnormal and smaller than 2^-300: no value.
  struct Terms {
    int first = 0;
    std::array<uint32_t, 3> values{};
  };
  static constexpr Terms terms(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - kLeastExponent;
    if (exponent < 0) return {};
    if (exponent >= 32 * (kLimbs - 3)) return {kLimbs - 1, {1, 0, 0}};  // also infinite, or not a number
    const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const int shift = exponent % 32;
    const uint64_t low = (mantissa & 0xffffffffU) << shift, high = (mantissa >> 32) << shift;
    const uint64_t middle = (low >> 32) + (high & 0xffffffffU);
    return {exponent / 32,
            {static_cast<uint32_t>(low), static_cast<uint32_t>(middle),
             static_cast<uint32_t>((high >> 32) + (middle >> 32))}};
  }

  // Up to 2^31 values may be added before the next normalise().
  void add(double value) {
    const Terms t = terms(value);
    for (size_t i = 0; i < t.values.size() && t.first + static_cast<int>(i) < kLimbs; ++i)
      limbs_[static_cast<size_t>(t.first) + i] += t.values[i];
  }
  void add(const ExactSum& other) {
    for (size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += other.limbs_[i];
    normalise();
  }
  // Brings every limb but the last two below 2^32.
  void normalise() {
    for (size_t i = 0; i + 2 < limbs_.size(); ++i) {
      limbs_[i + 1] += limbs_[i] >> 32;
      limbs_[i] &= 0xffffffff;
    }
  }
  // The sum, rounded a few times; not a number if any value was infinite, not a number, or 2^288 or more.
  double value() const {
    if (limbs_.back() != 0) return std::numeric_limits<double>::quiet_NaN();
    ExactSum normal = *this;
    normal.normalise();
    double sum = 0;
    for (int i = kLimbs - 2; i >= 0; --i)
      sum += std::ldexp(static_cast<double>(normal.limbs_[static_cast<size_t>(i)]), 32 * i - 352);
    return sum;
  }

  // For sums over ranks: normalised limbs may be added one by one.
  std::span<int64_t> limbs() { return limbs_; }

 private:
  static constexpr int kLeastExponent = 1075 - 352;

  std::array<int64_t, kLimbs> limbs_{};
};

}  // namespace mw
