// Hardware properties that kernels are compiled for: wave size, shuffles, stores. Beside vendor.h the only file that
// distinguishes vendors for kernels.
#pragma once

#include "base/dtype.h"
#include "ops/gpu/vendor.h"

namespace mw::gpu {

// Lanes that run in lockstep (a warp or wavefront). Kernels support both sizes; the host does not need to know.
#if defined(__HIP__) || defined(__HIPCC__)
constexpr int kWave = 64;  // CDNA
#if defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
#error "sums and scans of a wave are written for 64 lanes, as gfx9 has them"
#endif
template <class T>
__device__ T shuffle_xor(T value, int lanes) {
  return __shfl_xor(value, lanes, kWave);
}
template <class T>
__device__ T shuffle_up(T value, int lanes) {
  return __shfl_up(value, lanes, kWave);
}
template <class T>
__device__ T shuffle_from(T value, int lane) {
  return __shfl(value, lane, kWave);
}
using LaneMask = unsigned long long;
__device__ inline LaneMask ballot(bool set) { return __ballot(set); }
__device__ inline int count_lanes(LaneMask lanes) { return __popcll(lanes); }
__device__ inline int first_lane(LaneMask lanes) { return __ffsll(lanes) - 1; }
__device__ inline uint32_t largest_in_wave(uint32_t value) {
  for (int lanes = kWave / 2; lanes > 0; lanes /= 2) value = max(value, shuffle_xor(value, lanes));
  return value;
}
__device__ inline uint32_t least_in_wave(uint32_t value) { return ~largest_in_wave(~value); }
template <class Word>
__device__ void store_word(Word* to, Word word) {
  *to = word;
}
template <class Word>
__device__ Word load_word_once(const Word* from) {
  return *from;
}
template <class Word>
__device__ void store_word_once(Word* to, Word word) {
  *to = word;
}
// Marks a pointee as device memory. The compiler cannot know this for a pointer that was itself read from memory;
// without it, it would emit generic loads that may also access shared memory and cost extra waits.
template <class T>
using DeviceMemory = T __attribute__((address_space(1)));
__device__ inline float exp2_quickly(float x) { return exp2f(x); }
__device__ inline float root_quickly(float x) { return sqrtf(x); }
__device__ inline float divide_quickly(float x, float y) { return x / y; }
__device__ inline uint32_t round_pair(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
#else
constexpr int kWave = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
template <class T>
__device__ T shuffle_xor(T value, int lanes) {
  return __shfl_xor_sync(kAllLanes, value, lanes);
}
template <class T>
__device__ T shuffle_up(T value, int lanes) {
  return __shfl_up_sync(kAllLanes, value, lanes);
}
template <class T>
__device__ T shuffle_from(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
using LaneMask = unsigned;
// The lanes for which `set` is true.
__device__ inline LaneMask ballot(bool set) { return __ballot_sync(kAllLanes, set); }
__device__ inline int count_lanes(LaneMask lanes) { return __popc(lanes); }
__device__ inline int first_lane(LaneMask lanes) { return __ffs(static_cast<int>(lanes)) - 1; }
// Over all lanes; each gets the result.
__device__ inline uint32_t largest_in_wave(uint32_t value) { return __reduce_max_sync(kAllLanes, value); }
__device__ inline uint32_t least_in_wave(uint32_t value) { return __reduce_min_sync(kAllLanes, value); }
// Stores to device memory. A plain assignment of up to 16 bytes may be split into one store per element.
template <class Word>
__device__ void store_word(Word* to, Word word) {
  __stwb(to, word);
}
// The same, and loads, of words that no kernel reads again soon: other data stays in the L2 cache instead.
template <class Word>
__device__ Word load_word_once(const Word* from) {
  return __ldcs(from);
}
template <class Word>
__device__ void store_word_once(Word* to, Word word) {
  __stcs(to, word);
}
// 2^x, with a relative error of 2^-22; results below 2^-126 may become zero.
__device__ inline float exp2_quickly(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Square root and quotient with a relative error of 2^-22, for operands below 2^126; below 2^-126 they count as 0.
__device__ inline float root_quickly(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float divide_quickly(float x, float y) {
  float quotient;
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
  return quotient;
}
// Two values as bf16, rounded as to_bf16 does but for the bits of a NaN; the first in the lower half.
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

constexpr float kLog2OfE = 1.44269504f;

}  // namespace mw::gpu
