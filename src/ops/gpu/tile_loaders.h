// How one warpgroup fills the stages of a product: a loader for each way that an operand lies in memory. A stage holds
// a tile of 64 summands. Loaders have prepare(step), before the stage is free, and load(step, tile, filled): all
// threads call both, and then arrive_after_copies(filled).
#pragma once

#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/tensor_map.h"

namespace mw::gpu {

constexpr int kDepth = 64;                       // summands of a stage
constexpr int kPanel = kRowBytes / 2;            // columns of one panel of a tile along the width
constexpr int kPanelBytes = kDepth * kRowBytes;  // of a panel, and of 64 rows along the depth
constexpr int kCopyRows = kWarpgroup / 8;        // rows that the copying warpgroup fills at a time

// The chunk of each sixteenth row that a copying thread moves.
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
  int64_t limit;  // of sorted rows

  // Sorted row r in memory, or -1 from the limit on.
  __device__ int place(int64_t r) const {
    if (r >= limit) return -1;
    return index == nullptr ? static_cast<int>(r) : index[r];
  }
  // One multiplication of 32 bits. The address of a row that is not there is never read.
  __device__ const bf16* at(int place, int64_t column) const {
    const uint64_t bytes = static_cast<uint64_t>(max(place, 0)) * static_cast<unsigned>(width * sizeof(bf16));
    return reinterpret_cast<const bf16*>(reinterpret_cast<const char*>(data) + bytes) + column;
  }
};

// Loads kRows rows of an operand that lies along the depth, from sorted row `first` on.
template <int kRows>
struct DepthLoader {
  Source source;
  int place[kRows / kCopyRows];

  __device__ DepthLoader(const Source& from, int64_t first) : source(from) {
#pragma unroll
    for (int i = 0; i < kRows / kCopyRows; ++i) place[i] = source.place(first + copy_row() + i * kCopyRows);
  }
  __device__ void prepare(int) {}
  __device__ void load(int step, unsigned tile, unsigned) const {
    const int64_t column = static_cast<int64_t>(step) * kDepth + copy_column();
    const bool inside = column < source.width;
#pragma unroll
    for (int i = 0; i < kRows / kCopyRows; ++i)
      copy_chunk(tile + copy_offset() + i * kCopyRows * kRowBytes, source.at(place[i], column),
                 inside && place[i] >= 0);
  }
};

// Loads columns [left, left + kColumns) of an operand with one row a summand, from sorted row `first` on.
template <int kColumns>
struct WidthLoader {
  Source source;
  int64_t first, left;
  int place[kDepth / kCopyRows] = {};

  // Looks up the rows of a step. Indices come from memory: ask before the stage is free.
  __device__ void prepare(int step) {
#pragma unroll
    for (int i = 0; i < kDepth / kCopyRows; ++i)
      place[i] = source.place(first + static_cast<int64_t>(step) * kDepth + copy_row() + i * kCopyRows);
  }
  __device__ void load(int, unsigned tile, unsigned) const {
    const int64_t column = left + copy_column();
#pragma unroll
    for (int i = 0; i < kDepth / kCopyRows; ++i) {
      const bf16* from = source.at(place[i], column);
#pragma unroll
      for (int panel = 0; panel < kColumns / kPanel; ++panel)
        copy_chunk(tile + copy_offset() + panel * kPanelBytes + i * kCopyRows * kRowBytes, from + panel * kPanel,
                   place[i] >= 0 && column + panel * kPanel < source.width);
    }
  }
};

// Loads columns of an expert's weights as boxes, which one thread asks for: one of kColumns rows where they lie along
// the depth, else panels. Boxes end in zeros at the borders of the matrix.
template <Along kAlong, int kColumns>
struct BoxLoader {
  static constexpr int kBoxRows = kAlong == Along::depth ? kColumns : kDepth;
  const TensorMap& map;
  int expert, left;

  __device__ void prepare(int) {}
  __device__ void load(int step, unsigned tile, unsigned filled) const {
    if (threadIdx.x != 0) return;
    arrive_expecting(filled, kColumns * kRowBytes);
    if constexpr (kAlong == Along::depth) copy_box(tile, map, expert, left, step * kDepth, filled);
    else
#pragma unroll
      for (int panel = 0; panel < kColumns / kPanel; ++panel)
        copy_box(tile + panel * kPanelBytes, map, expert, step * kDepth, left + panel * kPanel, filled);
  }
};

__device__ inline Source source_of(const Rows<const bf16>& rows, int64_t limit) {
  return {rows.data, rows.index, rows.width, limit};
}

}  // namespace mw::gpu
