// Which tile a block computes next.
#pragma once

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Hands the numbers of tiles from the thread that takes them to all warps of a block. Lies in shared memory: in each
// slot two barriers, for a number put there and read by all warps, and the number.
template <int kWarps>
struct TileQueue {
  static constexpr int kSlots = 4, kSlotBytes = 32, kBytes = kSlots * kSlotBytes;

  unsigned memory;
  int slot = 0;
  unsigned parity = 0;

  __device__ unsigned ready() const { return memory + slot * kSlotBytes; }
  __device__ unsigned read() const { return ready() + 8; }
  __device__ unsigned number() const { return ready() + 16; }
  __device__ void init() {
    for (; slot < kSlots; ++slot) {
      init_barrier(ready(), 1);
      init_barrier(read(), kWarps);
    }
    slot = 0;
  }
  // Takes the tile that the next get() will hand out. For one thread, which itself has handed out all before.
  __device__ void take(unsigned* taken) const {
    wait_for_phase(read(), parity ^ 1);
    store_shared(number(), atomicAdd(taken, 1u));
    arrive(ready());
  }
  __device__ int get() {
    wait_for_phase(ready(), parity);
    const auto tile = static_cast<int>(load_shared(number()));
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(read());
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
    return tile;
  }
};

}  // namespace mw::gpu
