// Grouped products of bf16 on NVIDIA's tensor cores (mma.sync, from compute capability 8.0 on). A block computes a 128
// x 128 tile of an expert's result, eight warps of 64 x 32 each; operands come 32 summands at a time through four
// stages of shared memory, filled by asynchronous copies that gather rows by their index on the way.
#include "ops/gpu/grouped_tiles.h"

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
    copy_chunk(stage + r * S::kPitch + c, from, place.valid);
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
