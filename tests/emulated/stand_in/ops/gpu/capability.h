// Stands in for src/ops/gpu/capability.h: waves of 64 lanes, as on CDNA, unless a test says otherwise.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "emulated/block.h"

struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};

namespace mw::gpu {

constexpr int kWave = mw::emulated::kWaveLanes;

// All lanes of the wave must take part, here and below.
template <class T, class LaneOf>
T shuffle(T value, LaneOf lane_of) {
  static T given[mw::emulated::kMaxThreads][2];  // a lane may come back with the next before another has read the first
  static unsigned calls[mw::emulated::kMaxThreads];
  const unsigned thread = mw::emulated::this_thread(), turn = calls[thread]++ % 2,
                 lane = thread % static_cast<unsigned>(mw::emulated::lanes_of_wave);
  given[thread][turn] = value;
  mw::emulated::wait_for_wave();
  return given[thread - lane + static_cast<unsigned>(lane_of(static_cast<int>(lane)))][turn];
}
template <class T>
T shuffle_xor(T value, int lanes) {
  return shuffle(value, [=](int lane) { return lane ^ lanes; });
}
template <class T>
T shuffle_up(T value, int lanes) {
  return shuffle(value, [=](int lane) { return lane < lanes ? lane : lane - lanes; });
}
template <class T>
T shuffle_from(T value, int from) {
  return shuffle(value, [=](int) { return from; });
}

using LaneMask = unsigned long long;
inline LaneMask ballot(bool set) {
  LaneMask lanes = set ? LaneMask{1} << threadIdx.x % kWave : 0;
  for (int distance = kWave / 2; distance > 0; distance /= 2) lanes |= shuffle_xor(lanes, distance);
  return lanes;
}
inline int count_lanes(LaneMask lanes) { return std::popcount(lanes); }
inline int first_lane(LaneMask lanes) { return std::countr_zero(lanes); }
inline uint32_t largest_in_wave(uint32_t value) {
  for (int lanes = kWave / 2; lanes > 0; lanes /= 2) value = std::max(value, shuffle_xor(value, lanes));
  return value;
}
inline uint32_t least_in_wave(uint32_t value) { return ~largest_in_wave(~value); }

template <class Word>
void store_word(Word* to, Word word) {
  *to = word;
}
template <class Word>
Word load_word_once(const Word* from) {
  return *from;
}
template <class Word>
void store_word_once(Word* to, Word word) {
  *to = word;
}
constexpr float kLog2OfE = 1.44269504f;
inline float exp2_quickly(float x) { return std::exp2(x); }
inline uint32_t round_pair(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

}  // namespace mw::gpu
