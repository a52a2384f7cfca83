// Selection and sorting on the GPU: floats as order-preserving integers, prefix sums, and the largest or the n-th of
// many values.
#pragma once

#include <bit>
#include <limits>

#include "ops/gpu/launch.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {

// A value in the upper half, a tie breaker in the lower. (Not uint64_t: the shuffles are declared for this type.)
using SortKey = unsigned long long;

// Order-preserving: the larger float has the larger integer. NaNs sort beyond the infinity of their sign.
constexpr uint32_t ordered_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

constexpr float from_ordered_bits(uint32_t ordered) {
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// --- Prefix sums

// Sum of the values of this lane and all lanes before it.
template <class T>
__device__ T scan_wave(T value) {
  const int lane = static_cast<int>(threadIdx.x) % kWave;
  for (int lanes = 1; lanes < kWave; lanes *= 2) {
    const T before = shuffle_up(value, lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}

// Sum of the values of all threads before this one; `total` of all. blockDim.x is a multiple of 64 and all threads take
// part. May be called again at once.
template <class T>
__device__ T scan_block(T value, T* total) {
  __shared__ T of_wave[1024 / kWave];
  const int wave = static_cast<int>(threadIdx.x) / kWave, waves = static_cast<int>(blockDim.x) / kWave;
  const T inclusive = scan_wave(value);
  __syncthreads();  // of_wave may still be read from a call before
  if (threadIdx.x % kWave == kWave - 1) of_wave[wave] = inclusive;
  __syncthreads();
  T before = 0, sum = 0;
  for (int i = 0; i < waves; ++i) {
    if (i == wave) before = sum;
    sum += of_wave[i];
  }
  *total = sum;
  return before + inclusive - value;
}

// --- The largest values of an array that a wave shares: lane l reads and writes only entries l, l + kWave, ..., so
// that lanes never wait for each other's stores.

// Entries of the lane in [begin, end): for (i = first_own(begin, lane); i < end; i += kWave).
inline __device__ int first_own(int begin, int lane) { return begin + (lane - begin % kWave + kWave) % kWave; }

// The key of a value to choose by: larger values have larger keys. Key 0 means none: -inf is never chosen.
inline __device__ uint32_t choice_key(float value) {
  return value == -std::numeric_limits<float>::infinity() ? 0 : ordered_bits(value);
}
// The same where ties go to the lower index.
inline __device__ SortKey make_choice_key(float value, int index) {
  const uint32_t key = choice_key(value);
  return key == 0 ? 0 : static_cast<SortKey>(key) << 32 | ~static_cast<uint32_t>(index);
}
inline __device__ float value_of(SortKey key) { return from_ordered_bits(static_cast<uint32_t>(key >> 32)); }
constexpr SortKey kNoLimit = ~SortKey{0};

// The largest key among the lane's own entries in [begin, end) that is below `limit`; 0 when there is none.
inline __device__ SortKey largest_own(const float* values, int begin, int end, SortKey limit, int lane) {
  SortKey best = 0;
  for (int i = first_own(begin, lane); i < end; i += kWave) {
    const SortKey key = make_choice_key(values[i], i);
    if (key < limit && key > best) best = key;
  }
  return best;
}

// The same over the entries of all lanes; every lane gets the result.
inline __device__ SortKey largest_of_wave(const float* values, int begin, int end, SortKey limit, int lane) {
  return reduce_wave(largest_own(values, begin, end, limit, lane), Maximum());
}

// Sum of the `best` largest of values[begin, end), at least the lowest finite number.
inline __device__ float sum_largest(const float* values, int begin, int end, int64_t best, int lane) {
  constexpr float kLeast = std::numeric_limits<float>::lowest();
  float sum = 0.0f;
  SortKey last = kNoLimit;
  for (int64_t i = 0; i < best; ++i) {
    last = largest_of_wave(values, begin, end, last, lane);
    if (last == 0) break;
    sum += value_of(last);
  }
  return sum > kLeast ? sum : kLeast;
}

// Group-limited selection. Values lie in equal groups of `width`, scored by the sum of their `best` largest. Sets the
// values outside the `kept` groups of largest score to -inf; returns the gap between the last kept group and the next
// one. of_group: one float per group.
inline __device__ float keep_groups(float* values, float* of_group, int groups, int width, int64_t kept, int64_t best,
                                    int lane) {
  for (int g = 0; g < groups; ++g) {
    const float score = sum_largest(values, g * width, (g + 1) * width, best, lane);
    if (g % kWave == lane) of_group[g] = score;
  }
  SortKey last = kNoLimit;
  for (int64_t i = 0; i < kept; ++i) last = largest_of_wave(of_group, 0, groups, last, lane);
  const SortKey next = largest_of_wave(of_group, 0, groups, last, lane);
  for (int g = 0; g < groups; ++g) {
    const int own = g - g % kWave + lane;
    const float score = shuffle_from(own < groups ? of_group[own] : 0.0f, g % kWave);
    if (make_choice_key(score, g) >= last) continue;
    for (int i = first_own(g * width, lane); i < (g + 1) * width; i += kWave)
      values[i] = -std::numeric_limits<float>::infinity();
  }
  return value_of(last) - value_of(next);
}

// --- The n-th of many keys

// The key of the given rank (1: the smallest) among distinct keys, by radix selection with eight bits at a time, by a
// block of kThreads. Digits are counted by integer atomics, whose order does not matter. May be called again at once.
inline __device__ SortKey select_key(const SortKey* keys, int64_t count, int64_t rank) {
  static_assert(kThreads == 256, "a thread per digit");
  __shared__ int32_t of_digit[kThreads];
  __shared__ SortKey chosen;
  __shared__ int32_t smaller;
  const int thread = static_cast<int>(threadIdx.x);
  SortKey prefix = 0, mask = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    of_digit[thread] = 0;
    __syncthreads();
    for (int64_t i = thread; i < count; i += kThreads)
      if ((keys[i] & mask) == prefix) atomicAdd(of_digit + (keys[i] >> shift & 255), 1);
    __syncthreads();
    const int32_t here = of_digit[thread];
    int32_t total = 0;
    const int32_t before = scan_block(here, &total);
    if (before < rank && rank <= before + here) {
      chosen = prefix | static_cast<SortKey>(thread) << shift;
      smaller = before;
    }
    __syncthreads();
    prefix = chosen;
    rank -= smaller;
    mask |= SortKey{255} << shift;
  }
  return prefix;
}

}  // namespace mw::gpu
