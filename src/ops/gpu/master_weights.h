// Master weights and moments as optimizers read and write them on a GPU.
#pragma once

#include "ops/gpu/pack.h"

namespace mw::gpu {

// Moments: fp32, or bf16 by stochastic rounding with 16 bits of `chances`, from bit kShift on.
template <int kShift = 0, int N>
__device__ void store_moments(float* to, const Pack<float, N>& values, const Pack<uint32_t, N>&) {
  store(to, values);
}
template <int kShift = 0, int N>
__device__ void store_moments(bf16* to, const Pack<float, N>& values, const Pack<uint32_t, N>& chances) {
  Pack<bf16, N> rounded;
#pragma unroll
  for (int k = 0; k < N; ++k) rounded.at[k] = to_bf16_by_chance(values.at[k], chances.at[k] >> kShift);
  store(to, rounded);
}

template <int N>
__device__ Pack<float, N> load_weights(const float* values, const bf16*, int64_t i) {
  return load<N>(values + i);
}
template <int N>
__device__ Pack<float, N> load_weights(const uint16_t* rests, const bf16* copy, int64_t i) {
  const Pack<uint16_t, N> rest = load<N>(rests + i);
  const Pack<bf16, N> near = load<N>(copy + i);
  Pack<float, N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values.at[k] = join_float(near.at[k], rest.at[k]);
  return values;
}

// copy: null where none is wanted of weights in one piece.
template <int N>
__device__ void store_weights(float* to, bf16* copy, int64_t i, const Pack<float, N>& values) {
  store(to + i, values);
  if (copy != nullptr) store(copy + i, round_pack<bf16>(values));
}
template <int N>
__device__ void store_weights(uint16_t* to, bf16* copy, int64_t i, const Pack<float, N>& values) {
  Pack<uint16_t, N> rest;
  Pack<bf16, N> near;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const SplitFloat parts = split_float(values.at[k]);
    near.at[k] = parts.near;
    rest.at[k] = parts.rest;
  }
  store(to + i, rest);
  store(copy + i, near);
}

}  // namespace mw::gpu
