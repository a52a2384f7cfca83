// Shared by the kernels of grouped GEMM: rows addressed through an index, and the mapping from a thread block to its
// expert.
#pragma once

#include <cstdint>
#include <span>

#include "ops/gpu/launch.h"
#include "ops/matmul.h"

namespace mw::gpu {

template <class T>
struct Rows {
  T* data;
  const int32_t* index;
  int64_t width;
  __device__ T* row(int64_t r) const { return data + (index == nullptr ? r : static_cast<int64_t>(index[r])) * width; }
};

template <class T>
Rows<T> rows_of(const SortedRows& rows) {
  return {rows.data.as<std::remove_const_t<T>>(), rows.index, rows.data.cols()};
}

// Rows [begin, end) of `expert`.
struct RowTile {
  int64_t expert, begin, end;
};

// Finds a row tile by its number over all experts. Tiles have `height` rows; the last one of an expert may have fewer.
__device__ inline RowTile find_tile(const int64_t* offsets, int64_t tile, int height) {
  int64_t e = 0, before = 0;
  for (;; ++e) {
    const int64_t tiles = (offsets[e + 1] - offsets[e] + height - 1) / height;
    if (tile < before + tiles) break;
    before += tiles;
  }
  const int64_t begin = offsets[e] + (tile - before) * height;
  return {e, begin, begin + height < offsets[e + 1] ? begin + height : offsets[e + 1]};
}

inline int64_t count_row_tiles(std::span<const int64_t> offsets, int height) {
  int64_t tiles = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) tiles += ceil_div(offsets[e + 1] - offsets[e], height);
  return tiles;
}

// Tensor core kernels load 16 bytes at a time.
constexpr int kChunk = 8;  // elements of bf16
inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
inline bool fits_chunks(const SortedRows& rows) {
  return rows.data.dtype == DType::bf16 && rows.data.cols() % kChunk == 0 && is_aligned(rows.data.data);
}

template <class T>
T* device_copy(Stream& stream, WorkspaceFrame& frame, std::span<const T> values) {
  T* memory = frame.take<T>(values.size());
  stream.queue().write(memory, values.data(), values.size_bytes());
  return memory;
}

}  // namespace mw::gpu
