// Stands in for src/ops/gpu/capability.h: waves of 64 lanes, as on CDNA.
#pragma once

#include "emulated/block.h"

namespace mw::gpu {

constexpr int kWave = mw::emulated::kWaveLanes;

// All lanes of the wave must take part.
template <class T>
T shuffle_xor(T value, int lanes) {
  static T given[mw::emulated::kMaxThreads][2];  // a lane may come back with the next before another has read the first
  static unsigned calls[mw::emulated::kMaxThreads];
  const unsigned turn = calls[threadIdx.x]++ % 2;
  given[threadIdx.x][turn] = value;
  mw::emulated::wait_for_wave();
  return given[threadIdx.x ^ static_cast<unsigned>(lanes)][turn];
}

}  // namespace mw::gpu
