// The squares of one tile of a matrix (ops/square_sums.h), by one warp. Its lanes hold the elements as products on
// tensor cores leave them: of every eight columns a lane has columns 2 * (lane % 4) and the next one, in row lane / 4
// and in the row 8 below.
#pragma once

#include <type_traits>

#include "core/exact_sum.h"
#include "ops/gpu/capability.h"
#include "ops/square_sums.h"

namespace mw::gpu {

constexpr int kSquareLanes = 32;

__device__ inline float add_square(float sum, float value) { return fmaf(value, value, sum); }

// The same in all lanes.
__device__ inline float sum_of_lanes(float sum) {
  for (int lanes = kSquareLanes / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
  return sum;
}

__device__ inline void add_exactly(unsigned long long* limbs, float value) {
  const ExactSum::Terms terms = ExactSum::terms(static_cast<double>(value));
  for (int i = 0; i < 3; ++i)
    if (terms.first + i < ExactSum::kLimbs) atomicAdd(&limbs[terms.first + i], terms.values[i]);
}

// Adds the squares of neighbouring tiles of a warp, whose values a lane gives in their order, two at a time.
template <class U>
struct SquareAdder {
  unsigned long long* sets;  // of limbs of a SquareSums; null: nothing is added
  float sum = 0, own = 0;    // of the tile that has begun; of the tile whose number is this lane's
  int tile = 0;

  // The squares of two values as they are stored.
  __device__ void add(float left, float right) {
    if constexpr (std::is_same_v<U, bf16>) {
      const unsigned words = round_pair(left, right);
      left = to_float(bf16{static_cast<uint16_t>(words)});
      right = to_float(bf16{static_cast<uint16_t>(words >> 16)});
    }
    sum = add_square(add_square(sum, left), right);
  }
  __device__ void end_tile() {
    sum = sum_of_lanes(sum);
    if (static_cast<int>(threadIdx.x) % kSquareLanes == tile) own = sum;
    sum = 0;
    ++tile;
  }
  __device__ void finish() const {
    if (own != 0) add_exactly(sets + blockIdx.x % SquareSums::kSets * ExactSum::kLimbs, own);
  }
};

}  // namespace mw::gpu
