// Loaders by which one warpgroup fills the stages of a product, one for each memory layout of an operand. A stage holds
// a tile of 64 summands. All threads call prepare(step) before the stage is free, then load(step, tile, filled), then
// arrive_after_copies(filled).
#pragma once

#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/tensor_map.h"

namespace mw::gpu {

constexpr int kDepth = 64;                       // summands of a stage
constexpr int kPanel = kRowBytes / 2;            // columns of one panel of a tile along the width
constexpr int kPanelBytes = kDepth * kRowBytes;  // of a panel, and of 64 rows along the depth
constexpr int kCopyRows = kWarpgroup / 8;        // rows that the copying warpgroup fills at a time
constexpr int kCopyWarps = kWarpgroup / 32;

// The row and the chunk that a copying thread moves, in every sixteenth row.
__device__ inline int copy_row() { return static_cast<int>(threadIdx.x) / 8; }
__device__ inline int copy_column() { return static_cast<int>(threadIdx.x) % 8 * 8; }
__device__ inline unsigned copy_offset() {
  const unsigned row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  return row * kRowBytes + (chunk ^ (row % 8)) * 16;
}

// An operand's rows in memory, as the copying threads address them.
struct Source {
  const bf16* data;
  const int32_t* index;
  int64_t width;
  int limit;  // of sorted rows: there are some before it

  // Sorted row r, or the last one where r is past it; and its place in memory.
  __device__ int clamp(int r) const { return min(r, limit - 1); }
  __device__ int place(int r) const { return index == nullptr ? clamp(r) : index[clamp(r)]; }
  // One multiplication of 32 bits.
  __device__ const bf16* at(int place, int column) const {
    const uint64_t bytes = static_cast<uint64_t>(static_cast<unsigned>(place)) * static_cast<unsigned>(width * 2);
    return reinterpret_cast<const bf16*>(reinterpret_cast<const char*>(data + column) + bytes);
  }
};

// Loads kRows rows of an operand stored along the depth, from sorted row `first` on.
template <int kRows>
struct DepthLoader {
  Source source;
  int rows;  // from this thread's first one on
  int place[kRows / kCopyRows];

  __device__ DepthLoader(const Source& from, int first) : source(from), rows(from.limit - first - copy_row()) {
#pragma unroll
    for (int i = 0; i < kRows / kCopyRows; ++i) place[i] = source.place(first + copy_row() + i * kCopyRows);
  }
  __device__ void prepare(int) {}
  __device__ void load(int step, unsigned tile, unsigned) const {
    const int column = step * kDepth + copy_column();
    const bool inside = column < source.width;
#pragma unroll
    for (int i = 0; i < kRows / kCopyRows; ++i)
      copy_chunk(tile + copy_offset() + i * kCopyRows * kRowBytes, source.at(place[i], column),
                 inside && i * kCopyRows < rows);
  }
};

// Loads columns [left, left + kColumns) of an operand stored as one row per summand, from sorted row `first` on.
template <int kColumns>
struct WidthLoader {
  static constexpr int kRows = kDepth / kCopyRows;  // of each thread
  Source source;
  int first, column;
  int place[kRows], next[kRows];

  __device__ WidthLoader(const Source& from, int first_row, int left)
      : source(from), first(first_row + copy_row()), column(left + copy_column()) {
    look_up(0);
  }
  // Row indices come from memory: they are requested one step ahead and not used before.
  __device__ void prepare(int step) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) place[i] = source.index == nullptr ? source.clamp(row(step, i)) : next[i];
    look_up(step + 1);
  }
  __device__ void load(int step, unsigned tile, unsigned) const {
    const int rows = source.limit - first - step * kDepth, columns = static_cast<int>(source.width) - column;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bf16* from = source.at(place[i], column);
#pragma unroll
      for (int panel = 0; panel < kColumns / kPanel; ++panel)
        copy_chunk(tile + copy_offset() + panel * kPanelBytes + i * kCopyRows * kRowBytes, from + panel * kPanel,
                   i * kCopyRows < rows && panel * kPanel < columns);
    }
  }
  __device__ int row(int step, int i) const { return first + step * kDepth + i * kCopyRows; }
  __device__ void look_up(int step) {
    if (source.index == nullptr) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) next[i] = source.index[source.clamp(row(step, i))];
  }
};

// Loads boxes of a matrix by TMA: columns [left, left + kColumns) of the operand, with summands from `first` on. One
// thread of each warp in turn issues a copy, because issuing takes time. Along the depth, the columns are rows of the
// matrix and come as one box, otherwise as panels. Outside the matrix, boxes are filled with zeros. In a pair of blocks
// that share the operand, each block loads one half for both.
template <Along kAlong, int kColumns, bool kPaired = false>
struct BoxLoader {
  static constexpr int kBoxColumns = kAlong == Along::width ? kPanel : kPaired ? kColumns / kPair : kColumns;
  static constexpr int kBoxRows = kAlong == Along::depth ? kBoxColumns : kDepth;
  static constexpr int kBoxes = kColumns / kBoxColumns;
  const TensorMap& map;
  int matrix, first, left;
  bool shared = false;

  __device__ void prepare(int) {}
  __device__ void load(int step, unsigned tile, unsigned filled) const {
    if (threadIdx.x % 32 != 0) return;
    if (threadIdx.x == 0) arrive_expecting(filled, kColumns * kRowBytes);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (kPaired)
      if (shared) {
        static_assert(kBoxes / kPair <= kCopyWarps);
        if (warp < kBoxes / kPair) copy<true>(step, place_in_pair() * (kBoxes / kPair) + warp, tile, filled);
        return;
      }
    static_assert(kBoxes <= kCopyWarps);
    if (warp < kBoxes) copy<false>(step, warp, tile, filled);
  }
  template <bool kToPair>
  __device__ void copy(int step, int box, unsigned tile, unsigned filled) const {
    const unsigned to = tile + box * kBoxColumns * kRowBytes;
    const int summand = first + step * kDepth, column = left + box * kBoxColumns;
    const int row = kAlong == Along::depth ? column : summand, begin = kAlong == Along::depth ? summand : column;
    if constexpr (kToPair) copy_box_to_pair(to, map, matrix, row, begin, filled);
    else copy_box(to, map, matrix, row, begin, filled);
  }
};

__device__ inline Source source_of(const Rows<const bf16>& rows, int64_t limit) {
  return {rows.data, rows.index, rows.width, static_cast<int>(limit)};
}

}  // namespace mw::gpu
