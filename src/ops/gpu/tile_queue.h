// The queue that distributes tile numbers to a block, or to a pair of blocks.
#pragma once

#include "ops/gpu/wgmma.h"

namespace mw::gpu {

// Passes tile numbers from the thread that takes them to the first lane of every warp of a block. It lies in shared
// memory: each slot has a number and two barriers, "number written" and "number read by all warps". Both blocks of a
// pair get the same numbers: the first block writes them into both queues once all warps of both blocks have reported
// the slot as read.
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
  // Whether this is the thread of the block, or of the pair, that takes tiles.
  __device__ static bool takes() { return threadIdx.x == 0 && (!kPaired || place_in_pair() == 0); }
  // Takes the tile that the next get() returns. Only for that thread, after it has passed on all earlier ones.
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
  // Only the lane that releases the slot may read it: another lane could already see a later number there.
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
