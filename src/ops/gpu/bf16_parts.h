// An fp32 value as the sum of three bf16 parts.
#pragma once

#include <bit>

#include "base/dtype.h"
#include "ops/gpu/capability.h"

namespace mw::gpu {

constexpr int kParts = 3;

// The first part is the value rounded to bf16, the second what is then missing, rounded; the third misses nothing. Each
// is at most 2^-8 of the one before. A value that would round to infinity is cut off instead; one that is not finite is
// its first part, and has zeros for the others.
__device__ inline void split_value(float value, bf16& first, bf16& second, bf16& third) {
  const bool finite = isfinite(value);
  first = to_bf16(value);
  if (finite && !isfinite(to_float(first))) first.bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const float rest = finite ? value - to_float(first) : 0.0f;
  second = to_bf16(rest);
  third = to_bf16(rest - to_float(second));
}

// Adds up the products with the three parts of a value. If the first one is not finite it is the result, because the
// others are then NaNs: an infinity times a part that is zero.
__device__ inline float sum_of_parts(float first, float second, float third) {
  return isfinite(first) ? first + (second + third) : first;
}

}  // namespace mw::gpu
