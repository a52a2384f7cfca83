// What kernels may assume of the hardware they are compiled for. With vendor.h the only file that names a vendor.
#pragma once

#include "base/dtype.h"
#include "ops/gpu/vendor.h"

namespace mw::gpu {

// Lanes that run in lockstep. Kernels are written for either; the host never needs to know.
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
template <class Word>
__device__ void store_word(Word* to, Word word) {
  *to = word;
}
// What a pointer to it points to is in device memory. The compiler cannot know it of a pointer that was read from
// memory itself: it then makes loads that may also be of shared memory, and whoever reads that waits for them.
template <class T>
using DeviceMemory = T __attribute__((address_space(1)));
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
// To device memory. An assignment of up to 16 bytes may be split into one store per element.
template <class Word>
__device__ void store_word(Word* to, Word word) {
  __stwb(to, word);
}
// Two values as bf16, rounded as to_bf16 does but for the bits of a NaN; the first in the lower half.
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

}  // namespace mw::gpu
