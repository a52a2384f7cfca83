// The rotation of pairs of elements: rotary position embedding.
#pragma once

#include "ops/gpu/pack.h"

namespace mw::gpu {

// The cosines and sines of N neighbouring pairs at a position.
template <int N>
struct Angles {
  Pack<float, N> cosine, sine;
};

// sign = -1 rotates backwards.
template <int N>
__device__ Angles<N> load_angles(const float* cosine, const float* sine, float sign) {
  Angles<N> angles{load<N>(cosine), load<N>(sine)};
#pragma unroll
  for (int k = 0; k < N; ++k) angles.sine.at[k] *= sign;
  return angles;
}

// Rotates N pairs (a, b).
template <int N>
__device__ void turn(Pack<float, N>& a, Pack<float, N>& b, const Angles<N>& by) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float left = a.at[k], right = b.at[k];
    a.at[k] = left * by.cosine.at[k] - right * by.sine.at[k];
    b.at[k] = right * by.cosine.at[k] + left * by.sine.at[k];
  }
}

}  // namespace mw::gpu
