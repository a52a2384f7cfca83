// Stores of a tile through shared memory, where the copy engine (TMA) reads it: each multiplying warpgroup writes its
// rows box by box, and goes on to the next tile while the last boxes are being stored.
#pragma once

#include "ops/gpu/square_tiles.h"
#include "ops/gpu/tensor_map.h"
#include "ops/gpu/tile_stores.h"
#include "ops/gpu/tiling.h"

namespace mw::gpu {

constexpr int kBoxRows = kHeight / 2, kBoxBytes = kBoxRows * kRowBytes;
// Boxes of a warpgroup that shared memory holds, and those of both warpgroups.
constexpr int kHeldBoxes = 2, kHeldBytes = 2 * kHeldBoxes * kBoxBytes;

// 64 rows of one warpgroup in a tile, from (row, column) of a matrix of the result on, and the `width` of columns up to
// the end of the result. `memory`: where the warpgroup holds its boxes; `first`: the place of the first one. Each
// element is stored, or added to, once.
template <class U>
struct TileBoxes {
  static constexpr int kColumns = kRowBytes / sizeof(U);
  const TensorMap& map;
  unsigned memory;
  int matrix, row, column, width, first = 0;

  // Squares are added while boxes are being stored: warps have nothing else to do then.
  template <int kCount>
  __device__ void store(const float (&sums)[kCount], bool add, SquareAdder<U>& squares) const {
#pragma unroll
    for (int i = 0; i < 2 * kCount / kColumns; ++i) {
      const unsigned box = memory + (first + i) % kHeldBoxes * kBoxBytes;
      const bool inside = i * kColumns < width;
      if (inside) {
        wait_for_boxes<kHeldBoxes - 1>();
        sync_warpgroup();
        write_box(box, i * kColumns, sums, U());
        fence_writes();
        sync_warpgroup();
      }
      if (threadIdx.x % kWarpgroup == 0) {
        if (inside && add) add_box(map, matrix, row, column + i * kColumns, box);
        else if (inside) store_box(map, matrix, row, column + i * kColumns, box);
        commit_boxes();  // also without a box: batches are counted
      }
      if (squares.sets != nullptr) {
#pragma unroll
        for (int j = 0; j < kColumns / 2; j += 2)
          squares.add(sums[i * kColumns / 2 + j], sums[i * kColumns / 2 + j + 1]);
        if ((i + 1) * kColumns % kSquareColumns == 0) squares.end_tile();
      }
    }
  }
};

// 64 rows of one warpgroup in a tile of bf16, as above. Boxes leave in rounds of kHeldBoxes, one for each of the first
// warps, because the fence and the barriers of a round take longer than writing its boxes. kAdds: the engine first
// loads what the sums are added to; `barrier` ends a phase with each round.
template <bool kAdds>
struct RowBoxes {
  static constexpr int kColumns = kRowBytes / sizeof(bf16), kRound = kHeldBoxes * kColumns;
  const TensorMap& map;
  unsigned memory, barrier;
  int row, column, width;

  __device__ static int own_box() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32; }
  __device__ static bool moves_box() { return threadIdx.x % 32 == 0 && own_box() < kHeldBoxes; }
  // The round of columns from `left` on. Boxes beyond the last column are loaded, too, so that phases agree.
  __device__ void load(int left) const {
    if (!moves_box()) return;
    wait_for_boxes<0>();
    arrive_expecting(barrier, kBoxBytes);
    copy_box(memory + own_box() * kBoxBytes, map, 0, row, column + left + own_box() * kColumns, barrier);
  }
  // kAdds: after load(0).
  template <int kCount>
  __device__ void store(const float (&sums)[kCount]) const {
    static_assert(2 * kCount % (kAdds ? 2 * kRound : kRound) == 0);  // the first round of a tile has parity 0
#pragma unroll
    for (int left = 0; left < 2 * kCount; left += kRound) {
      if constexpr (kAdds) {
        if (left > 0) load(left);
        wait_for_phase(barrier, left / kRound % 2);
      } else {
        wait_for_boxes<0>();
        sync_warpgroup();
      }
#pragma unroll
      for (int i = 0; i < kHeldBoxes; ++i) write_box<kAdds>(memory + i * kBoxBytes, left + i * kColumns, sums, bf16());
      fence_writes();
      sync_warpgroup();
      const int own = left + own_box() * kColumns;
      if (!moves_box() || own >= width) continue;
      store_box(map, 0, row, column + own, memory + own_box() * kBoxBytes);
      commit_boxes();
    }
  }
};

}  // namespace mw::gpu
