// Sums and maxima over a wave or a block, in an order that depends only on the block's shape: deterministic.
#pragma once

#include "ops/gpu/capability.h"

namespace mw::gpu {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Maximum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Every lane gets the result.
template <class T, class Op>
__device__ T reduce_wave(T value, Op op) {
  for (int lanes = kWave / 2; lanes > 0; lanes /= 2) value = op(value, shuffle_xor(value, lanes));
  return value;
}

// Every thread of the block gets the result. blockDim.x must be a multiple of 64 and all threads must take part. May be
// called again at once.
template <class T, class Op>
__device__ T reduce_block(T value, Op op) {
  __shared__ T of_wave[1024 / kWave];
  value = reduce_wave(value, op);
  const int wave = static_cast<int>(threadIdx.x) / kWave, waves = static_cast<int>(blockDim.x) / kWave;
  __syncthreads();  // of_wave may still be read from a call before
  if (threadIdx.x % kWave == 0) of_wave[wave] = value;
  __syncthreads();
  T result = of_wave[0];
  for (int i = 1; i < waves; ++i) result = op(result, of_wave[i]);
  return result;
}

// Over groups of `lanes` neighbouring threads: a power of two within a wave, or all threads of the block. Every thread
// of a group gets its result; all threads of the block must take part.
template <class T, class Op>
__device__ T reduce_lanes(T value, int lanes, Op op) {
  if (lanes > kWave) return reduce_block(value, op);
  for (int distance = lanes / 2; distance > 0; distance /= 2) value = op(value, shuffle_xor(value, distance));
  return value;
}

}  // namespace mw::gpu
