// What the kernels of grouped_wgmma.h load and store for each tile: of products of rows, and of weight gradients.
#pragma once

#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/grouped_wgmma.h"
#include "ops/gpu/tile_boxes.h"

namespace mw::gpu {

// The rows of an operand. Without an index the tensor map describes them, and TMA copies load them as boxes.
struct Operand {
  TensorMap map;
  Rows<const bf16> rows;
};

// How results are stored: from registers row by row, or as boxes, which are overwritten or added to. Boxes are of bf16
// results without an index.
enum class Results : int { rows, boxes, added_boxes };

// Where a warpgroup stores its rows of a tile: as boxes where it has all 64.
template <bool kAdds>
struct RowsPlace {
  TileRows<bf16> rows;
  RowBoxes<kAdds> boxes;
  bool whole;

  __device__ void prefetch(int tile_width) const {
    if (!kAdds) return;
    if (whole) boxes.load(0);
    else rows.prefetch(tile_width);
  }
  template <int kCount>
  __device__ void store(const float (&sums)[kCount], bool) const {
    if (whole) boxes.store(sums);
    else rows.store(sums, kAdds);
  }
};

// y[r] (=|+=) x[r] W^T (weights along the depth: [out, depth]) or x[r] W (along the width: [depth, out]). Boxes of x
// may extend into the next expert's rows: those results are not stored.
template <Along kWeights, class U, class Shape, bool kBoxesOfX, Results kResults>
struct RowsProduct {
  static constexpr bool kBoxesOfY = kResults != Results::rows, kAdds = kResults == Results::added_boxes;
  static constexpr Along kA = Along::depth, kB = kWeights;
  static constexpr int kRows = Shape::kRows, kWidth = Shape::kWidth;
  static constexpr bool kBoxesA = kBoxesOfX, kBoxesB = true, kPaired = Shape::kPaired, kFindsAhead = kBoxesOfY;
  static constexpr int kHeldBytes = kBoxesOfY ? gpu::kHeldBytes + (kAdds ? kAtomBytes : 0) : 0;
  using LoaderB = BoxLoader<kB, kWidth, kPaired>;

  TensorMap weights;
  Operand x;
  Rows<U> y;
  bool add;
  TensorMap y_map;

  // A barrier for each multiplying warpgroup, behind its boxes.
  __device__ static unsigned barrier_of(unsigned held, int group) { return held + gpu::kHeldBytes + group * 8; }
  __device__ static void init_barriers(unsigned held) {
    if constexpr (kAdds)
      for (int group = 0; group < 2; ++group) init_barrier(barrier_of(held, group), kHeldBoxes);
  }
  // Shared memory lives as long as the block.
  __device__ void finish() const { wait_for_boxes<0>(); }
  __device__ int64_t depth(const Tile&) const { return x.rows.width; }
  __device__ int64_t height(const Tile& tile) const { return tile.end - tile.begin - tile.top; }
  __device__ auto load_a(const Tile& tile) const {
    const int first = static_cast<int>(tile.begin + tile.top);
    if constexpr (kBoxesOfX) return BoxLoader<kA, kHeight>{x.map, 0, 0, first};
    else return DepthLoader<kHeight>(source_of(x.rows, tile.end), first);
  }
  __device__ auto load_b(const Tile& tile) const {
    return LoaderB{weights, tile.expert, 0, static_cast<int>(tile.left), tile.shared};
  }
  __device__ int width(const Tile& tile) const { return static_cast<int>(y.width - tile.left); }
  __device__ auto place(const Tile& tile, int group, unsigned held) const {
    const auto rows = find_tile_rows<U>(height(tile), width(tile),
                                        [&](int r) { return y.row(tile.begin + tile.top + r) + tile.left; });
    if constexpr (kBoxesOfY) {
      const int top = group * kBoxRows, row = static_cast<int>(tile.begin + tile.top) + top;
      const RowBoxes<kAdds> boxes{y_map, held + group * gpu::kHeldBytes / 2, barrier_of(held, group),
                                  row,   static_cast<int>(tile.left),        width(tile)};
      return RowsPlace<kAdds>{rows, boxes, height(tile) >= top + kBoxRows};
    } else {
      return rows;
    }
  }
};

// Where a warpgroup stores its part of a tile of weight gradients. The copy engine cannot add in fp32 to bf16 values.
// What it adds to is not prefetched: that made added fp32 gradients 5 to 13 % slower on an H100.
template <class U>
struct WeightsPlace {
  TileRows<U> rows;
  TileBoxes<U> boxes;
  unsigned long long* squares;

  __device__ void prefetch(int tile_width) const {
    if constexpr (std::is_same_v<U, bf16>) rows.prefetch(tile_width);
  }
  template <int kCount>
  __device__ void store(const float (&sums)[kCount], bool add) const {
    SquareAdder<U> adder{squares};
    if (std::is_same_v<U, bf16> && add) rows.store(sums, add);
    else boxes.store(sums, add, adder);
    adder.finish();
  }
};

// The same of a tall tile, for stores by the copy engine alone: adding to bf16 values would take more registers than
// there are.
template <class U>
struct TallWeightsPlace {
  TileBoxes<U> boxes;
  unsigned long long* squares;

  __device__ void prefetch(int) const {}
  template <int kStripCount, int kCount>
  __device__ void store(const float (&sums)[kStripCount][kCount], bool add) const {
    SquareAdder<U> adder{squares};
#pragma unroll
    for (int strip = 0; strip < kStripCount; ++strip) {
      TileBoxes<U> own = boxes;
      own.row += strip * kBoxRows;
      own.first = strip * (2 * kCount / TileBoxes<U>::kColumns);
      own.store(sums[strip], add, adder);
    }
    adder.finish();
  }
};

// dw_e[n, k] (=|+=) sum over rows r of expert e of dy[r, n] x[r, k]. Boxes of one operand may extend into the next
// expert's rows, where the copies of the other operand are zeros: those rows contribute nothing as long as they are
// finite.
template <class U, class Shape, bool kBoxesOfDy, bool kBoxesOfX>
struct WeightsProduct {
  static_assert(kBoxesOfX ? !kBoxesOfDy : !Shape::kPaired);
  static constexpr Along kA = Along::width, kB = Along::width;
  static constexpr int kRows = Shape::kRows, kWidth = Shape::kWidth;
  static constexpr bool kBoxesA = kBoxesOfDy, kBoxesB = kBoxesOfX, kPaired = Shape::kPaired, kFindsAhead = false;
  static constexpr int kHeldBytes = gpu::kHeldBytes;
  // Each tile begins with the first place for a box.
  static_assert(kRows / kHeight * kWidth / TileBoxes<U>::kColumns % kHeldBoxes == 0);

  Operand dy, x;
  TensorMap dw_map;
  U* dw;
  bool add;
  unsigned long long* squares;  // the sets of a SquareSums; null: none

  __device__ int64_t depth(const Tile& tile) const { return tile.end - tile.begin; }
  __device__ int64_t height(const Tile& tile) const { return dy.rows.width - tile.top; }
  template <bool kBoxes, int kColumns, bool kPairs = false>
  __device__ static auto load(const Operand& from, const Tile& tile, int64_t left) {
    const int first = static_cast<int>(tile.begin), column = static_cast<int>(left);
    if constexpr (kBoxes) return BoxLoader<Along::width, kColumns, kPairs>{from.map, 0, first, column, tile.shared};
    else return WidthLoader<kColumns>(source_of(from.rows, tile.end), first, column);
  }
  __device__ auto load_a(const Tile& tile) const { return load<kBoxesA, kRows>(dy, tile, tile.top); }
  __device__ auto load_b(const Tile& tile) const { return load<kBoxesB, kWidth, kPaired>(x, tile, tile.left); }
  __device__ int width(const Tile& tile) const { return static_cast<int>(x.rows.width - tile.left); }
  __device__ auto place(const Tile& tile, int group, unsigned held) const {
    const TileBoxes<U> boxes{dw_map,
                             held + group * kHeldBytes / 2,
                             tile.expert,
                             static_cast<int>(tile.top) + group * kRows / 2,
                             static_cast<int>(tile.left),
                             width(tile)};
    if constexpr (kRows == kTallHeight) return TallWeightsPlace<U>{boxes, squares};
    else {
      U* const first = dw + (tile.expert * dy.rows.width + tile.top) * x.rows.width + tile.left;
      return WeightsPlace<U>{
          find_tile_rows<U>(height(tile), width(tile), [&](int r) { return first + r * x.rows.width; }), boxes,
          squares};
    }
  }
  __device__ static void init_barriers(unsigned) {}
  // Shared memory lives as long as the block.
  __device__ void finish() const { wait_for_boxes<0>(); }
};

}  // namespace mw::gpu
