// Grouped products of bf16 on NVIDIA's tensor cores (mma.sync, from compute capability 8.0 on). A block computes a 128
// x 128 tile of an expert's result, eight warps of 64 x 32 each; operands come 32 summands at a time through four
// stages of shared memory, filled by asynchronous copies that gather rows by their index on the way.
#include "ops/gpu/grouped_tiles.h"
#include "ops/gpu/mma.h"

namespace mw::gpu {
namespace {

constexpr int kTile = 128, kDepth = 32, kStages = 4, kMmaThreads = 256;
constexpr int kChunksPerThread = kTile * kDepth / kChunk / kMmaThreads;
constexpr int kWarpRows = 64, kWarpCols = 32;  // of a warp's share of the tile
constexpr int kFragRows = kWarpRows / 16, kFragCols = kWarpCols / 8;

// How a tile lies in shared memory, as in global memory: rows along the depth [128][32], or one row a summand
// [32][128]. Rows are padded so that eight of them begin in eight different groups of banks.
template <Along kAlong>
struct Shape {
  static constexpr int kRowElements = kAlong == Along::depth ? kDepth : kTile;
  static constexpr int kPitch = kRowElements + 8;
  static constexpr int kElements = (kAlong == Along::depth ? kTile : kDepth) * kPitch;
  static constexpr int kChunksPerRow = kRowElements / kChunk;
};

struct MmaSums {
  float value[kFragRows][kFragCols][4];
};

// sums += a b over the depth of two tiles.
template <Along kA, Along kB>
__device__ void multiply_tiles(const bf16* a, const bf16* b, int top, int left, MmaSums& sums) {
  constexpr int kPitchA = Shape<kA>::kPitch, kPitchB = Shape<kB>::kPitch;
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  for (int depth = 0; depth < kDepth; depth += 16) {
    unsigned x[kFragRows][4], y[kFragCols / 2][4];
#pragma unroll
    for (int i = 0; i < kFragRows; ++i) {
      const int m = top + 16 * i + (matrix % 2) * 8, d = depth + (matrix / 2) * 8;
      if constexpr (kA == Along::depth) load_matrices<false>(x[i], shared_address(a + (m + row) * kPitchA + d));
      else load_matrices<true>(x[i], shared_address(a + (d + row) * kPitchA + m));
    }
#pragma unroll
    for (int j = 0; j < kFragCols / 2; ++j) {
      const int n = left + 16 * j + (matrix / 2) * 8, d = depth + (matrix % 2) * 8;
      if constexpr (kB == Along::depth) load_matrices<false>(y[j], shared_address(b + (n + row) * kPitchB + d));
      else load_matrices<true>(y[j], shared_address(b + (d + row) * kPitchB + n));
    }
#pragma unroll
    for (int i = 0; i < kFragRows; ++i)
#pragma unroll
      for (int j = 0; j < kFragCols; ++j)
        multiply_add(sums.value[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
  }
}

// Copies the operand's stage of summands [depth, depth + 32).
template <Along kAlong, class RowsOf>
__device__ void load_stage(const TileOperand<kAlong, RowsOf>& operand, bf16* stage, int64_t depth) {
  using S = Shape<kAlong>;
#pragma unroll
  for (int i = 0; i < kChunksPerThread; ++i) {
    const int id = static_cast<int>(threadIdx.x) + i * kMmaThreads;
    const int r = id / S::kChunksPerRow, c = id % S::kChunksPerRow * kChunk;
    const auto place = operand.find(r, c, depth);
    const bf16* from = place.valid ? operand.rows(place.row) + place.column : operand.rows(operand.first_row);
    copy_chunk(shared_address(stage + r * S::kPitch + c), from, place.valid);
  }
}

struct MmaCores {
  static constexpr int kTile = gpu::kTile, kThreads = kMmaThreads;
  using Sums = MmaSums;

  template <Along kA, Along kB>
  static constexpr size_t shared_bytes() {
    return static_cast<size_t>(kStages) * (Shape<kA>::kElements + Shape<kB>::kElements) * sizeof(bf16);
  }

  template <class U, class Visit>
  __device__ static void start(Sums& sums, bool, const Visit&) {
    sums = {};
  }

  template <Along kA, Along kB, class RowsA, class RowsB>
  __device__ static void multiply(const TileOperand<kA, RowsA>& a, const TileOperand<kB, RowsB>& b, int64_t depth,
                                  Sums& sums) {
    extern __shared__ uint4 memory[];
    auto* tiles = reinterpret_cast<bf16*>(memory);
    constexpr int kStage = Shape<kA>::kElements + Shape<kB>::kElements;
    const int64_t steps = (depth + kDepth - 1) / kDepth;
    const auto load = [&](int64_t step) {
      bf16* stage = tiles + step % kStages * kStage;
      if (step < steps) {
        load_stage(a, stage, step * kDepth);
        load_stage(b, stage + Shape<kA>::kElements, step * kDepth);
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

  template <class StorePair>
  __device__ static void store_tile(const Sums& sums, const StorePair& store) {
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

  __device__ static void store_values(float* to, float2 pair, bool add) {
    float2 old = add ? *reinterpret_cast<float2*>(to) : make_float2(0.0f, 0.0f);
    *reinterpret_cast<float2*>(to) = make_float2(old.x + pair.x, old.y + pair.y);
  }
  __device__ static void store_values(bf16* to, float2 pair, bool add) {
    if (add) pair = make_float2(pair.x + to_float(to[0]), pair.y + to_float(to[1]));
    const uint32_t low = to_bf16(pair.x).bits, high = to_bf16(pair.y).bits;
    *reinterpret_cast<uint32_t*>(to) = low | high << 16;
  }
};

}  // namespace

const char* tensor_core_instructions() { return "mma.sync"; }

bool fits_tensor_cores(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  return fits_tiles(x, weights, y);
}

bool multiply_on_tensor_cores(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                              std::span<const Weight> weights, const SortedRows& y, Store store) {
  return multiply_by_tiles<MmaCores>(stream, kind, x, offsets, weights, y, store);
}

bool accumulate_on_tensor_cores(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                std::span<const int64_t> offsets, TensorView dw_eNK) {
  return accumulate_by_tiles<MmaCores>(stream, dy, x, offsets, dw_eNK);
}

}  // namespace mw::gpu
