// The ring of stages in shared memory that passes tiles of operands from the copying warpgroup to the multiplying ones.
#pragma once

#include "ops/gpu/tiling.h"
#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Stages in shared memory, each with two barriers: filled, and read by all warps.
template <int kBytesOfStage, int kCount>
struct StageRing {
  static constexpr int kStageBytes = kBytesOfStage, kStages = kCount, kBytes = kStages * (kStageBytes + 16);

  unsigned memory;
  int stage = 0;
  unsigned parity = 0;

  __device__ unsigned tile() const { return memory + stage * kStageBytes; }
  __device__ unsigned filled() const { return memory + kStages * kStageBytes + stage * 16; }
  __device__ unsigned read() const { return filled() + 8; }
  __device__ void init(int arrivals, int readers) {
    for (; stage < kStages; ++stage) {
      init_barrier(filled(), arrivals);
      init_barrier(read(), readers);
    }
    stage = 0;
  }
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The stages of a grouped product, with the tiles of both operands.
template <int kWidth, int kRows = kHeight>
struct Ring : StageRing<(kRows + kWidth) * kRowBytes, (192 << 10) / ((kRows + kWidth) * kRowBytes)> {
  __device__ unsigned a() const { return this->tile(); }
  __device__ unsigned b() const { return this->tile() + kRows * kRowBytes; }
};

// One arrival per warp, when all of its lanes have read the stage. Paired blocks report every stage to each other,
// shared or not: so either may write into the other's stage when its own barrier says that it was read.
template <bool kPaired>
__device__ void release(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  arrive(barrier);
  if constexpr (kPaired) arrive_there(address_in(1 - place_in_pair(), barrier));
}

}  // namespace mw::gpu
