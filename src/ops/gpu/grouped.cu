// One block computes a 64 x 64 tile of an expert's result, 16 summands at a time from shared memory; a thread holds 4 x
// 4 of it. Row tiles of all experts share one grid: a block finds its expert in the table of offsets.
#include "ops/gpu/grouped.h"

#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

constexpr int kTile = 64, kDepth = 16, kOwn = 4;
constexpr int kGroupedThreads = (kTile / kOwn) * (kTile / kOwn);
constexpr int kPad = 4;  // keeps columns of a tile out of the same bank

struct TileSums {
  float value[kOwn][kOwn] = {};
};

// sums += a^T b over the depth of two tiles in shared memory.
__device__ void multiply_tiles(const float (*a)[kTile + kPad], const float (*b)[kTile + kPad], TileSums& sums) {
  const int top = static_cast<int>(threadIdx.x) / (kTile / kOwn) * kOwn;
  const int left = static_cast<int>(threadIdx.x) % (kTile / kOwn) * kOwn;
  for (int d = 0; d < kDepth; ++d) {
    float x[kOwn], y[kOwn];
    for (int i = 0; i < kOwn; ++i) x[i] = a[d][top + i];
    for (int j = 0; j < kOwn; ++j) y[j] = b[d][left + j];
    for (int i = 0; i < kOwn; ++i)
      for (int j = 0; j < kOwn; ++j) sums.value[i][j] = fmaf(x[i], y[j], sums.value[i][j]);
  }
}

// y[r, j] (=|+=) sum over d of x[r, d] * w_e[j * stride_out + d * stride_depth].
template <class T, class U>
__global__ void __launch_bounds__(kGroupedThreads)
    rows_kernel(Rows<const T> x, const T* const* weights, const int64_t* offsets, Rows<U> y, int64_t stride_out,
                int64_t stride_depth, bool add) {
  __shared__ float a[kDepth][kTile + kPad], b[kDepth][kTile + kPad];
  const int64_t column_tiles = (y.width + kTile - 1) / kTile;
  const RowTile tile = find_tile(offsets, blockIdx.x / column_tiles, kTile);
  const int64_t left = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  const T* w = weights[tile.expert];
  TileSums sums;
  for (int64_t first = 0; first < x.width; first += kDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kGroupedThreads) {
      const int64_t d = first + i % kDepth, r = tile.begin + i / kDepth;
      a[i % kDepth][i / kDepth] = d < x.width && r < tile.end ? to_float(x.row(r)[d]) : 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kGroupedThreads) {
      // Neighbouring threads read neighbouring elements of w, whichever way round it lies.
      const int depth = stride_depth == 1 ? i % kDepth : i / kTile, column = stride_depth == 1 ? i / kDepth : i % kTile;
      const int64_t d = first + depth, j = left + column;
      b[depth][column] = d < x.width && j < y.width ? to_float(w[j * stride_out + d * stride_depth]) : 0.0f;
    }
    __syncthreads();
    multiply_tiles(a, b, sums);
    __syncthreads();
  }
  const int top = static_cast<int>(threadIdx.x) / (kTile / kOwn) * kOwn;
  const int64_t column = left + static_cast<int>(threadIdx.x) % (kTile / kOwn) * kOwn;
  for (int i = 0; i < kOwn; ++i) {
    if (tile.begin + top + i >= tile.end) break;
    U* to = y.row(tile.begin + top + i);
    for (int j = 0; j < kOwn && column + j < y.width; ++j)
      to[column + j] = from_float<U>(sums.value[i][j] + (add ? to_float(to[column + j]) : 0.0f));
  }
}

// dw_e[n, k] += sum over rows r of expert e of dy[r, n] * x[r, k].
template <class T, class U>
__global__ void __launch_bounds__(kGroupedThreads)
    weights_kernel(Rows<const T> dy, Rows<const T> x, const int64_t* offsets, U* dw) {
  __shared__ float a[kDepth][kTile + kPad], b[kDepth][kTile + kPad];
  const int64_t n_tiles = (dy.width + kTile - 1) / kTile, k_tiles = (x.width + kTile - 1) / kTile;
  const int64_t expert = blockIdx.x / (n_tiles * k_tiles), place = blockIdx.x % (n_tiles * k_tiles);
  const int64_t top = place / k_tiles * kTile, left = place % k_tiles * kTile;
  const int64_t end = offsets[expert + 1];
  if (offsets[expert] == end) return;
  TileSums sums;
  for (int64_t first = offsets[expert]; first < end; first += kDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kGroupedThreads) {
      const int64_t r = first + i / kTile;
      const int column = i % kTile;
      a[i / kTile][column] = r < end && top + column < dy.width ? to_float(dy.row(r)[top + column]) : 0.0f;
      b[i / kTile][column] = r < end && left + column < x.width ? to_float(x.row(r)[left + column]) : 0.0f;
    }
    __syncthreads();
    multiply_tiles(a, b, sums);
    __syncthreads();
  }
  const int64_t row = top + static_cast<int>(threadIdx.x) / (kTile / kOwn) * kOwn;
  const int64_t column = left + static_cast<int>(threadIdx.x) % (kTile / kOwn) * kOwn;
  U* out = dw + expert * dy.width * x.width;
  for (int i = 0; i < kOwn && row + i < dy.width; ++i)
    for (int j = 0; j < kOwn && column + j < x.width; ++j) {
      U& sum = out[(row + i) * x.width + column + j];
      sum = from_float<U>(to_float(sum) + sums.value[i][j]);
    }
}

}  // namespace

void multiply_grouped(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                      std::span<const Weight> weights, const SortedRows& y, Store store) {
  if (weights.empty() || x.data.cols() == 0 || y.data.cols() == 0) return;
  MW_CHECK(static_cast<int64_t>(weights.size()) <= kMaxExperts, "{} experts in one call", weights.size());
  const int64_t n = weights[0].n, k = weights[0].k;
  const bool forward = kind == ProductKind::forward;
  if (multiply_by_warpgroups(stream, kind, x, offsets, weights, y, store)) return;
  if (multiply_on_tensor_cores(stream, kind, x, offsets, weights, y, store)) return;
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const int64_t blocks = count_row_tiles(offsets, kTile) * ceil_div(y.data.cols(), kTile);
  with_float_type(x.data.dtype, [&](auto in) {
    using T = decltype(in);
    std::vector<const T*> pointers;
    for (const Weight& w : weights) {
      const void* data = x.data.dtype == DType::f32 ? w.values.data : w.packed_forward.data;
      MW_CHECK(w.n == n && w.k == k && data != nullptr, "weight [{}, {}] beside [{}, {}]", w.n, w.k, n, k);
      pointers.push_back(static_cast<const T*>(data));
    }
    const T* const* table = device_copy(stream, frame, std::span<const T* const>(pointers));
    with_float_type(y.data.dtype, [&](auto out) {
      using U = decltype(out);
      launch(stream, rows_kernel<T, U>, blocks, kGroupedThreads, 0, rows_of<const T>(x), table, device_offsets,
             rows_of<U>(y), forward ? k : 1, forward ? 1 : k, store == Store::accumulate);
    });
  });
}

void multiply_weights_grouped(Stream& stream, const SortedRows& dy, const SortedRows& x,
                              std::span<const int64_t> offsets, TensorView dw_eNK, GradientStore to) {
  const int64_t experts = dw_eNK.dim(0), n = dy.data.cols(), k = x.data.cols();
  MW_CHECK(experts <= kMaxExperts, "{} experts in one call", experts);
  if (experts == 0 || n == 0 || k == 0) return;
  const bool no_rows = offsets.front() == offsets.back();
  if (!no_rows && multiply_weights_by_warpgroups(stream, dy, x, offsets, dw_eNK, to)) return;
  if (to.store == Store::overwrite) gpu::fill_zero(stream, dw_eNK);
  if (no_rows) return count_squares(to, dw_eNK);
  if (accumulate_on_tensor_cores(stream, dy, x, offsets, dw_eNK)) return;
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  with_float_type(x.data.dtype, [&](auto type) {
    using T = decltype(type);
    with_float_type(dw_eNK.dtype, [&](auto out) {
      using U = decltype(out);
      launch(stream, weights_kernel<T, U>, experts * ceil_div(n, kTile) * ceil_div(k, kTile), kGroupedThreads, 0,
             rows_of<const T>(dy), rows_of<const T>(x), device_offsets, dw_eNK.as<U>());
    });
  });
}

}  // namespace mw::gpu
