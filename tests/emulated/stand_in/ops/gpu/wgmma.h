// Stands in for src/ops/gpu/wgmma.h in a build without a GPU: what stores of a tile take from it.
#pragma once

#include <array>
#include <bit>
#include <vector>

#include "base/dtype.h"
#include "ops/gpu/launch.h"

struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

namespace mw::gpu {

using std::min;
constexpr int kWarpgroup = 128, kRowBytes = 128, kAtomBytes = 8 * kRowBytes;

// All lanes of a wave call it.
template <class T>
T shuffle_xor(T value, int lanes) {
  static unsigned long long given[emulated::kMaxThreads][2];  // a lane may come back before the last one has read
  static unsigned calls[emulated::kMaxThreads];
  const unsigned turn = calls[threadIdx.x]++ % 2;
  given[threadIdx.x][turn] = value;
  emulated::wait_for_wave();
  return static_cast<T>(given[threadIdx.x ^ static_cast<unsigned>(lanes)][turn]);
}
inline uint32_t round_pair(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
inline void prefetch(const void*) {}

// Shared memory, and the addresses that each thread has stored at, in order.
inline std::array<unsigned, 4096> shared_words;
inline std::vector<unsigned> shared_stores[emulated::kMaxThreads];
inline void store_shared(unsigned to, unsigned word) {
  shared_stores[threadIdx.x].push_back(to);
  shared_words.at(to / 4) = word;
}
inline void store_shared(unsigned to, unsigned first, unsigned second) {
  store_shared(to, first);
  shared_words.at(to / 4 + 1) = second;
}
inline void add_async(float* to, float4 values) {
  to[0] += values.x;
  to[1] += values.y;
  to[2] += values.z;
  to[3] += values.w;
}

}  // namespace mw::gpu
