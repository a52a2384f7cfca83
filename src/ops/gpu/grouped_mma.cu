// Grouped products of bf16 on NVIDIA's tensor cores (mma.sync, from compute capability 8.0 on). A block computes a 128
// x 128 tile of an expert's result, eight warps of 64 x 32 each; operands come 32 summands at a time through four
// stages of shared memory, filled by asynchronous copies that gather rows by their index on the way.
#include "ops/gpu/grouped.h"
#include "ops/gpu/grouped_rows.h"

namespace mw::gpu {
namespace {

constexpr int kTile = 128, kDepth = 32, kStages = 4, kMmaThreads = 256;
constexpr int kChunksPerThread = kTile * kDepth / kChunk / kMmaThreads;
constexpr int kWarpRows = 64, kWarpCols = 32;  // of a warp's share of the tile
constexpr int kFragRows = kWarpRows / 16, kFragCols = kWarpCols / 8;

// How a tile lies in shared memory, and in global memory: rows along the depth [128][32], or one row a depth [32][128].
// Rows are padded so that eight of them begin in eight different groups of banks.
enum class Along { depth, width };
template <Along kAlong>
struct Shape {
  static constexpr int kRowElements = kAlong == Along::depth ? kDepth : kTile;
  static constexpr int kPitch = kRowElements + 8;
  static constexpr int kElements = (kAlong == Along::depth ? kTile : kDepth) * kPitch;
  static constexpr int kChunksPerRow = kRowElements / kChunk;
};

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes, or writes zeros.
__device__ void copy_chunk(bf16* to, const bf16* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0));
}
__device__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

// Four 8 x 8 matrices, one address of a row from each lane.
template <bool kTransposed>
__device__ void load_matrices(unsigned (&out)[4], const bf16* row) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
}

__device__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Sums {
  float value[kFragRows][kFragCols][4] = {};
};

// sums += a b over the depth of two tiles.
template <Along kA, Along kB>
__device__ void multiply_tiles(const bf16* a, const bf16* b, int top, int left, Sums& sums) {
  constexpr int kPitchA = Shape<kA>::kPitch, kPitchB = Shape<kB>::kPitch;
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  for (int depth = 0; depth < kDepth; depth += 16) {
    unsigned x[kFragRows][4], y[kFragCols / 2][4];
#pragma unroll
    for (int i = 0; i < kFragRows; ++i) {
      const int m = top + 16 * i + (matrix % 2) * 8, d = depth + (matrix / 2) * 8;
      if constexpr (kA == Along::depth) load_matrices<false>(x[i], a + (m + row) * kPitchA + d);
      else load_matrices<true>(x[i], a + (d + row) * kPitchA + m);
    }
#pragma unroll
    for (int j = 0; j < kFragCols / 2; ++j) {
      const int n = left + 16 * j + (matrix / 2) * 8, d = depth + (matrix % 2) * 8;
      if constexpr (kB == Along::depth) load_matrices<false>(y[j], b + (n + row) * kPitchB + d);
      else load_matrices<true>(y[j], b + (d + row) * kPitchB + n);
    }
#pragma unroll
    for (int i = 0; i < kFragRows; ++i)
#pragma unroll
      for (int j = 0; j < kFragCols; ++j)
        multiply_add(sums.value[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
  }
}

// One operand of a tile. rows(r): the start of row r in global memory, which is one of 128 rows of the tile, or one of
// the summands. `limit` bounds the rows, `columns` the elements of a row.
template <Along kAlong, class RowsOf>
struct Operand {
  RowsOf rows;
  int64_t first_row, row_limit, first_column, column_limit;

  // Copies the stage of summands [depth, depth + 32).
  __device__ void load(bf16* tile, int64_t depth) const {
    using S = Shape<kAlong>;
#pragma unroll
    for (int i = 0; i < kChunksPerThread; ++i) {
      const int id = static_cast<int>(threadIdx.x) + i * kMmaThreads;
      const int r = id / S::kChunksPerRow, c = id % S::kChunksPerRow * kChunk;
      const int64_t row = first_row + r + (kAlong == Along::width ? depth : 0);
      const int64_t column = first_column + c + (kAlong == Along::depth ? depth : 0);
      const bool valid = row < row_limit && column < column_limit;
      copy_chunk(tile + r * S::kPitch + c, valid ? rows(row) + column : rows(first_row), valid);
    }
  }
};

template <Along kA, Along kB, class RowsA, class RowsB>
__device__ void multiply(const Operand<kA, RowsA>& a, const Operand<kB, RowsB>& b, int64_t depth, Sums& sums) {
  extern __shared__ uint4 memory[];
  auto* tiles = reinterpret_cast<bf16*>(memory);
  constexpr int kStage = Shape<kA>::kElements + Shape<kB>::kElements;
  const int64_t steps = (depth + kDepth - 1) / kDepth;
  const auto load = [&](int64_t step) {
    bf16* stage = tiles + step % kStages * kStage;
    if (step < steps) {
      a.load(stage, step * kDepth);
      b.load(stage + Shape<kA>::kElements, step * kDepth);
    }
    commit_copies();
  };
  for (int64_t step = 0; step + 1 < kStages; ++step) load(step);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int top = warp / (kTile / kWarpCols) * kWarpRows, left = warp % (kTile / kWarpCols) * kWarpCols;
  for (int64_t step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage has come, and the one before has been read
    load(step + kStages - 1);
    const bf16* stage = tiles + step % kStages * kStage;
    multiply_tiles<kA, kB>(stage, stage + Shape<kA>::kElements, top, left, sums);
  }
}

// Calls store(row, column, two neighbouring sums) for each pair of the tile.
template <class Store2>
__device__ void store_tile(const Sums& sums, const Store2& store) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int top = warp / (kTile / kWarpCols) * kWarpRows + lane / 4;
  const int left = warp % (kTile / kWarpCols) * kWarpCols + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kFragRows; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kFragCols; ++j)
        store(top + 16 * i + 8 * half, left + 8 * j,
              make_float2(sums.value[i][j][2 * half], sums.value[i][j][2 * half + 1]));
}

__device__ void store_pair(float* to, float2 pair, bool add) {
  float2 old = add ? *reinterpret_cast<float2*>(to) : make_float2(0.0f, 0.0f);
  *reinterpret_cast<float2*>(to) = make_float2(old.x + pair.x, old.y + pair.y);
}
__device__ void store_pair(bf16* to, float2 pair, bool add) {
  if (add) pair = make_float2(pair.x + to_float(to[0]), pair.y + to_float(to[1]));
  const uint32_t low = to_bf16(pair.x).bits, high = to_bf16(pair.y).bits;
  *reinterpret_cast<uint32_t*>(to) = low | high << 16;
}

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
template <Along kWeights, class U>
__global__ void __launch_bounds__(kMmaThreads, 2)
    rows_mma_kernel(Rows<const bf16> x, const bf16* const* weights, const int64_t* offsets, Rows<U> y, bool add) {
  const int64_t column_tiles = (y.width + kTile - 1) / kTile, depth = x.width;
  const RowTile tile = find_tile(offsets, blockIdx.x / column_tiles, kTile);
  const int64_t left = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  const Operand<Along::depth, GatheredRows> a{{x}, tile.begin, tile.end, 0, depth};
  Sums sums;
  if constexpr (kWeights == Along::depth) {
    const Operand<kWeights, PlainRows> b{{weights[tile.expert], depth}, left, y.width, 0, depth};
    multiply(a, b, depth, sums);
  } else {
    const Operand<kWeights, PlainRows> b{{weights[tile.expert], y.width}, 0, depth, left, y.width};
    multiply(a, b, depth, sums);
  }
  store_tile(sums, [&](int row, int column, float2 pair) {
    if (tile.begin + row < tile.end && left + column < y.width)
      store_pair(y.row(tile.begin + row) + left + column, pair, add);
  });
}

// dw_e[n, k] += sum over rows r of expert e of dy[r, n] x[r, k].
template <class U>
__global__ void __launch_bounds__(kMmaThreads, 2)
    weights_mma_kernel(Rows<const bf16> dy, Rows<const bf16> x, const int64_t* offsets, U* dw) {
  const int64_t n_tiles = (dy.width + kTile - 1) / kTile, k_tiles = (x.width + kTile - 1) / kTile;
  const int64_t expert = blockIdx.x / (n_tiles * k_tiles), place = blockIdx.x % (n_tiles * k_tiles);
  const int64_t top = place / k_tiles * kTile, left = place % k_tiles * kTile;
  const int64_t begin = offsets[expert], end = offsets[expert + 1];
  if (begin == end) return;
  const Operand<Along::width, GatheredRows> a{{dy}, begin, end, top, dy.width}, b{{x}, begin, end, left, x.width};
  Sums sums;
  multiply(a, b, end - begin, sums);
  U* out = dw + expert * dy.width * x.width;
  store_tile(sums, [&](int row, int column, float2 pair) {
    if (top + row < dy.width && left + column < x.width)
      store_pair(out + (top + row) * x.width + left + column, pair, true);
  });
}

template <Along kA, Along kB>
constexpr size_t shared_bytes() {
  return static_cast<size_t>(kStages) * (Shape<kA>::kElements + Shape<kB>::kElements) * sizeof(bf16);
}

template <class... Parameters, class... Arguments>
void launch_with_shared(Stream& stream, void (*kernel)(Parameters...), int64_t blocks, size_t bytes,
                        const Arguments&... arguments) {
  check(allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes), "asking for shared memory");
  launch(stream, kernel, blocks, kMmaThreads, bytes, arguments...);
}

}  // namespace

bool fits_tensor_cores(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  return fits_chunks(x) && y.data.cols() % kChunk == 0 && is_aligned(y.data.data) &&
         std::all_of(weights.begin(), weights.end(), [](const Weight& w) {
           return w.packed_forward.data != nullptr && is_aligned(w.packed_forward.data);
         });
}

bool multiply_on_tensor_cores(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                              std::span<const Weight> weights, const SortedRows& y, Store store) {
  if (!fits_tensor_cores(x, weights, y)) return false;
  std::vector<const bf16*> pointers;
  for (const Weight& w : weights) pointers.push_back(static_cast<const bf16*>(w.packed_forward.data));
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const bf16* const* table = device_copy(stream, frame, std::span<const bf16* const>(pointers));
  const int64_t blocks = count_row_tiles(offsets, kTile) * ceil_div(y.data.cols(), kTile);
  const bool add = store == Store::accumulate;
  with_float_type(y.data.dtype, [&](auto type) {
    using U = decltype(type);
    if (kind == ProductKind::forward)
      launch_with_shared(stream, rows_mma_kernel<Along::depth, U>, blocks, shared_bytes<Along::depth, Along::depth>(),
                         rows_of<const bf16>(x), table, device_offsets, rows_of<U>(y), add);
    else
      launch_with_shared(stream, rows_mma_kernel<Along::width, U>, blocks, shared_bytes<Along::depth, Along::width>(),
                         rows_of<const bf16>(x), table, device_offsets, rows_of<U>(y), add);
  });
  return true;
}

bool accumulate_on_tensor_cores(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                std::span<const int64_t> offsets, TensorView dw_eNK) {
  if (!fits_chunks(dy) || !fits_chunks(x) || !is_aligned(dw_eNK.data)) return false;
  WorkspaceFrame frame(stream.workspace());
  const int64_t* device_offsets = device_copy(stream, frame, offsets);
  const int64_t blocks = dw_eNK.dim(0) * ceil_div(dy.data.cols(), kTile) * ceil_div(x.data.cols(), kTile);
  with_float_type(dw_eNK.dtype, [&](auto type) {
    using U = decltype(type);
    launch_with_shared(stream, weights_mma_kernel<U>, blocks, shared_bytes<Along::width, Along::width>(),
                       rows_of<const bf16>(dy), rows_of<const bf16>(x), device_offsets, dw_eNK.as<U>());
  });
  return true;
}

}  // namespace mw::gpu
