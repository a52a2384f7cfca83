// Which tile a block, or a pair of them, computes next.
#pragma once

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Hands the numbers of tiles from the thread that takes them to all warps of a block, of each to its first lane. Lies
// in shared memory: in each slot two barriers, for a number put there and read by all warps, and the number. A pair
// gets the same numbers: the first block puts them into the queues of both, once all warps of both have told it that
// the slot is read.
template <int kWarps, bool kPaired>
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
      init_barrier(read(), kPaired ? kPair * kWarps : kWarps);
    }
    slot = 0;
  }
  // The thread that takes, of the block or the pair.
  __device__ static bool takes() { return threadIdx.x == 0 && (!kPaired || place_in_pair() == 0); }
  // Takes the tile that the next get() will hand out. For that thread, which itself has handed out all before.
  __device__ void take(int* taken) const {
    wait_for_phase(read(), parity ^ 1);
    const auto tile = static_cast<unsigned>(atomicAdd(taken, 1));
    if constexpr (kPaired) {
#pragma unroll
      for (int block = 0; block < kPair; ++block)
        send_there(address_in(block, number()), tile, address_in(block, ready()));
    } else {
      store_shared(number(), tile);
      arrive(ready());
    }
  }
  // Only the lane that frees the slot looks at it: another one might see the number after next there.
  __device__ int get() {
    int tile = 0;
    if (threadIdx.x % 32 == 0) {
      wait_for_phase(ready(), parity);
      tile = static_cast<int>(load_shared(number()));
      if constexpr (kPaired) arrive_there(address_in(0, read()));
      else arrive(read());
    }
    tile = shuffle_from(tile, 0);
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
    return tile;
  }
};

}  // namespace mw::gpu
