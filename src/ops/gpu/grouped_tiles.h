// Grouped GEMM in bf16, tile by tile of an expert's result, independent of the tensor core instruction. The file of an
// instruction provides a class Cores:
//   kTile, kThreads: a block of kThreads threads computes kTile x kTile sums.
//   Sums: a thread's share of the sums.
//   start<U>(sums, add, visit): sets the sums to zero, or to the values to add to; may call visit as store_tile does.
//   multiply(a, b, depth, sums): sums += a b^T, of two operands of type TileOperand, by all threads of a block.
//   store_tile(sums, visit): calls visit(row, column, values) for each run of neighbouring sums of a thread.
//   store_values(to, values, add): called by visit to write to, or add to, the result in bf16 or f32.
//   shared_bytes<kA, kB>(): dynamic shared memory of multiply.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/gpu/grouped.h"
#include "ops/gpu/grouped_rows.h"

namespace mw::gpu {

// Memory layout of a tile in global memory: rows along the depth (the summed dimension), or one row per summand.
enum class Along { depth, width };

// One operand of a tile. rows(r): the start of row r in global memory; a row of the tile, or a summand, by the layout.
// `row_limit` bounds the rows, `column_limit` the elements of a row.
template <Along kAlong, class RowsOf>
struct TileOperand {
  RowsOf rows;
  int64_t first_row, row_limit, first_column, column_limit;

  // The address of the chunk in row r and column c of the stage of summands that begins at `depth`.
  struct Place {
    int64_t row, column;
    bool valid;
  };
  __device__ Place find(int r, int c, int64_t depth) const {
    const int64_t row = first_row + r + (kAlong == Along::width ? depth : 0);
    const int64_t column = first_column + c + (kAlong == Along::depth ? depth : 0);
    return {row, column, row < row_limit && column < column_limit};
  }
};

struct GatheredRows {
  Rows<const bf16> source;
  __device__ const bf16* operator()(int64_t r) const { return source.row(r); }
};
struct PlainRows {
  const bf16* data;
  int64_t width;
  __device__ const bf16* operator()(int64_t r) const { return data + r * width; }
};

// y[r] (=|+=) x[r] W^T (weights along the depth: [out, depth]) or x[r] W (along the width: [depth, out]).
template <class Cores, Along kWeights, class U>
__global__ void __launch_bounds__(Cores::kThreads, 2)
    rows_tile_kernel(Rows<const bf16> x, const bf16* const* weights, const int64_t* offsets, Rows<U> y, bool add) {
  constexpr int kTile = Cores::kTile;
  const int64_t column_tiles = (y.width + kTile - 1) / kTile, depth = x.width;
  const RowTile tile = find_tile(offsets, blockIdx.x / column_tiles, kTile);
  const int64_t left = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  const TileOperand<Along::depth, GatheredRows> a{{x}, tile.begin, tile.end, 0, depth};
  const auto visit = [&](int row, int column, auto values) {
    if (tile.begin + row < tile.end && left + column < y.width)
      Cores::store_values(y.row(tile.begin + row) + left + column, values, add);
  };
  typename Cores::Sums sums;
  Cores::template start<U>(sums, add, visit);
  if constexpr (kWeights == Along::depth) {
    const TileOperand<kWeights, PlainRows> b{{weights[tile.expert], depth}, left, y.width, 0, depth};
    Cores::multiply(a, b, depth, sums);
  } else {
    const TileOperand<kWeights, PlainRows> b{{weights[tile.expert], y.width}, 0, depth, left, y.width};
    Cores::multiply(a, b, depth, sums);
  }
  Cores::store_tile(sums, visit);
}

// dw_e[n, k] += sum over rows r of expert e of dy[r, n] x[r, k].
template <class Cores, class U>
__global__ void __launch_bounds__(Cores::kThreads, 2)
    weights_tile_kernel(Rows<const bf16> dy, Rows<const bf16> x, const int64_t* offsets, U* dw) {
  constexpr int kTile = Cores::kTile;
  const int64_t n_tiles = (dy.width + kTile - 1) / kTile, k_tiles = (x.width + kTile - 1) / kTile;
  const int64_t expert = blockIdx.x / (n_tiles * k_tiles), place = blockIdx.x % (n_tiles * k_tiles);
  const int64_t top = place / k_tiles * kTile, left = place % k_tiles * kTile;
  const int64_t begin = offsets[expert], end = offsets[expert + 1];
  if (begin == end) return;
  const TileOperand<Along::width, GatheredRows> a{{dy}, begin, end, top, dy.width}, b{{x}, begin, end, left, x.width};
  const auto visit = [&](int row, int column, auto values) {
    if (top + row < dy.width && left + column < x.width)
      Cores::store_values(dw + (expert * dy.width + top + row) * x.width + left + column, values, true);
  };
  typename Cores::Sums sums;
  Cores::template start<U>(sums, true, visit);
  Cores::multiply(a, b, end - begin, sums);
  Cores::store_tile(sums, visit);
}

template <class Cores, class... Parameters, class... Arguments>
void launch_tiles(Stream& stream, void (*kernel)(Parameters...), int64_t blocks, size_t shared_bytes,
                  const Arguments&... arguments) {
  if (shared_bytes > 0)
    check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes), "asking for shared memory");
  launch(stream, kernel, blocks, Cores::kThreads, shared_bytes, arguments...);
}

// Contracts as fits_tensor_cores, multiply_on_tensor_cores and accumulate_on_tensor_cores.
inline bool fits_tiles(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  return fits_chunks(x) && y.data.cols() % kChunk == 0 && is_aligned(y.data.data) &&
         std::all_of(weights.begin(), weights.end(), [](const Weight& w) {
           return w.packed_forward.data != nullptr && is_aligned(w.packed_forward.data);
         });
}

template <class Cores>
bool multiply_by_tiles(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                       std::span<const Weight> weights, const SortedRows& y, Store store) {
  if (!fits_tiles(x, weights, y)) return false;
  std::vector<const bf16*> pointers;
  for (const Weight& w : weights) pointers.push_back(static_cast<const bf16*>(w.packed_forward.data));
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const bf16* const* table = device_copy(stream, frame, std::span<const bf16* const>(pointers));
  const int64_t blocks = count_row_tiles(offsets, Cores::kTile) * ceil_div(y.data.cols(), Cores::kTile);
  const bool add = store == Store::accumulate;
  with_float_type(y.data.dtype, [&](auto type) {
    using U = decltype(type);
    if (kind == ProductKind::forward)
      launch_tiles<Cores>(stream, rows_tile_kernel<Cores, Along::depth, U>, blocks,
                          Cores::template shared_bytes<Along::depth, Along::depth>(), rows_of<const bf16>(x), table,
                          device_offsets, rows_of<U>(y), add);
    else
      launch_tiles<Cores>(stream, rows_tile_kernel<Cores, Along::width, U>, blocks,
                          Cores::template shared_bytes<Along::depth, Along::width>(), rows_of<const bf16>(x), table,
                          device_offsets, rows_of<U>(y), add);
  });
  return true;
}

template <class Cores>
bool accumulate_by_tiles(Stream& stream, const SortedRows& dy, const SortedRows& x, std::span<const int64_t> offsets,
                         TensorView dw_eNK) {
  if (!fits_chunks(dy) || !fits_chunks(x) || !is_aligned(dw_eNK.data)) return false;
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const int64_t blocks = dw_eNK.dim(0) * ceil_div(dy.data.cols(), Cores::kTile) * ceil_div(x.data.cols(), Cores::kTile);
  with_float_type(dw_eNK.dtype, [&](auto type) {
    using U = decltype(type);
    launch_tiles<Cores>(stream, weights_tile_kernel<Cores, U>, blocks,
                        Cores::template shared_bytes<Along::width, Along::width>(), rows_of<const bf16>(dy),
                        rows_of<const bf16>(x), device_offsets, dw_eNK.as<U>());
  });
  return true;
}

}  // namespace mw::gpu
