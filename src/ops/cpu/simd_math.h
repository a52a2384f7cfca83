// Branch-free fp32 functions that compilers vectorize inside plain loops: no calls, no tables, no compiler flags.
#pragma once

#include <bit>
#include <cstdint>

namespace mw::cpu {

// e^x with a relative error below 2e-7 where the result is a normal number, correct subnormals below that; 0 for
// x < -104, +inf for x > 88.73; a NaN stays a NaN.
inline float fast_exp(float x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // n * kLn2High is exact
  float c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;
  // e^x = 2^n * e^r with |r| <= ln(2) / 2.
  const float shifted = c * kLog2e + kRounder;
  const float n = shifted - kRounder;
  const float r = (c - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;  // minimax coefficients of Cephes' expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since n may leave the range of a normal exponent; only the last product rounds.
  const int32_t exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder));
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t k) { return std::bit_cast<float>((static_cast<uint32_t>(k) + 127u) << 23); };
  return p * power(half) * power(static_cast<int32_t>(static_cast<uint32_t>(exponent) - static_cast<uint32_t>(half)));
}

// 1 / (1 + e^-x): relative error below 4e-7 for x > -88, 0 far below.
inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

}  // namespace mw::cpu
