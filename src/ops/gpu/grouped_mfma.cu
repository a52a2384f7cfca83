// Grouped products of bf16 on AMD's matrix cores (v_mfma, from CDNA2 on). A block computes a 128 x 128 tile of an
// expert's result, four waves of 64 x 64 each. Operands come 32 summands at a time: while one stage in shared memory is
// multiplied, the next is on its way to registers. Whichever way round an operand lies in global memory, a stage holds
// it as the instructions want it: for each row chunks of eight summands.
#include <bit>

#include "ops/gpu/grouped_tiles.h"

namespace mw::gpu {
namespace {

constexpr int kTile = 128, kDepth = 32, kMfmaThreads = 256, kLanes = 64;
constexpr int kChunksPerRow = kDepth / kChunk, kTileChunks = kTile * kChunksPerRow;
constexpr int kChunksPerThread = kTileChunks / kMfmaThreads;
constexpr int kWaveTile = 64;  // rows and columns of a wave's share of the tile
constexpr int kFrag = 32, kFrags = kWaveTile / kFrag;

// Eight elements of bf16, the first in the lower half of the first word.
struct alignas(16) Chunk {
  uint32_t words[kChunk / 2];
};

// What a lane gives to one instruction, and what it has of the sums.
using Summands = short __attribute__((vector_size(8)));
using FragSums = float __attribute__((vector_size(64)));
struct Halves {  // of a chunk
  Summands at[2];
};

struct MfmaSums {
  FragSums value[kFrags][kFrags];
};

// Where chunk c of row r lies in a stage. Lanes that read one chunk of neighbouring rows, write the chunks of a row, or
// write words of different rows and chunks of a transposed tile, meet different banks.
__device__ int place_of(int r, int c) { return c * kTile + (r ^ ((6 * c ^ r / 8) % 8)); }

// A chunk on its way from global memory to registers; zeros where it does not exist. Something is read even then:
// inside of a branch a thread would have to wait for what it reads.
class PendingChunk {
 public:
  __device__ void load(const bf16* from, bool exists) {
    words_ = *(const DeviceMemory<Words>*)from;
    exists_ = exists;
  }
  __device__ uint32_t word(int i) const { return exists_ ? words_[i] : 0; }
  __device__ Chunk chunk() const { return {{word(0), word(1), word(2), word(3)}}; }

 private:
  using Words = uint32_t __attribute__((vector_size(sizeof(Chunk))));
  Words words_;
  bool exists_;
};

// A thread's part of one operand: fetched from global memory into registers, then stored to a stage.
template <Along kAlong, class RowsOf>
class TileLoader;

template <class RowsOf>
class TileLoader<Along::depth, RowsOf> {
 public:
  __device__ explicit TileLoader(const TileOperand<Along::depth, RowsOf>& operand)
      : width_(operand.column_limit - operand.first_column) {
#pragma unroll
    for (int i = 0; i < kChunksPerThread; ++i) {
      const int64_t row = operand.first_row + row_of(i);
      exists_[i] = row < operand.row_limit;
      rows_[i] = operand.rows(exists_[i] ? row : operand.first_row) + operand.first_column;
    }
  }

  __device__ void fetch(int64_t depth) {
    const int64_t column = depth + chunk_of() * kChunk;
    const bool inside = column < width_;
#pragma unroll
    for (int i = 0; i < kChunksPerThread; ++i) chunks_[i].load(rows_[i] + (inside ? column : 0), inside && exists_[i]);
  }

  __device__ void store(Chunk* stage) const {
#pragma unroll
    for (int i = 0; i < kChunksPerThread; ++i) stage[place_of(row_of(i), chunk_of())] = chunks_[i].chunk();
  }

 private:
  __device__ static int row_of(int i) { return (static_cast<int>(threadIdx.x) + i * kMfmaThreads) / kChunksPerRow; }
  __device__ static int chunk_of() { return static_cast<int>(threadIdx.x) % kChunksPerRow; }

  const bf16* rows_[kChunksPerThread];
  bool exists_[kChunksPerThread];
  int64_t width_;
  PendingChunk chunks_[kChunksPerThread];
};

// Two neighbouring summands of eight rows of the tile, which become a word of each of these rows.
template <class RowsOf>
class TileLoader<Along::width, RowsOf> {
 public:
  __device__ explicit TileLoader(const TileOperand<Along::width, RowsOf>& operand) : operand_(operand) {}

  __device__ void fetch(int64_t depth) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto place = operand_.find(2 * pair_of() + i, first_row(), depth);
      const bf16* row = operand_.rows(place.valid ? place.row : operand_.first_row);
      chunks_[i].load(row + (place.valid ? place.column : operand_.first_column), place.valid);
    }
  }

  __device__ void store(Chunk* stage) const {
    constexpr int kPairs = kChunk / 2;  // in a chunk
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const uint32_t low = chunks_[0].word(i / 2), high = chunks_[1].word(i / 2);
      stage[place_of(first_row() + i, pair_of() / kPairs)].words[pair_of() % kPairs] =
          i % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    }
  }

 private:
  static_assert(kDepth / 2 * (kTile / kChunk) == kMfmaThreads);
  // Four lanes read 64 bytes side by side; a wave reads all summands.
  __device__ static int pair_of() { return static_cast<int>(threadIdx.x) % kLanes / 4; }
  __device__ static int first_row() {
    return (static_cast<int>(threadIdx.x) / kLanes * 4 + static_cast<int>(threadIdx.x) % 4) * kChunk;
  }

  TileOperand<Along::width, RowsOf> operand_;
  PendingChunk chunks_[2];
};

__device__ int wave_top() { return static_cast<int>(threadIdx.x) / kLanes / (kTile / kWaveTile) * kWaveTile; }
__device__ int wave_left() { return static_cast<int>(threadIdx.x) / kLanes % (kTile / kWaveTile) * kWaveTile; }

// sums += a b^T over the depth of two stages. An instruction takes eight summands: of lanes 0 to 31 four, and of the
// other lanes, which stand for the same rows, four more. Which ones they are is all the same, as long as a and b agree:
// so a lane reads a chunk of eight, and gives one half of it to one instruction, the other half to the next.
__device__ void multiply_stages(const Chunk* a, const Chunk* b, MfmaSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, row = lane % kFrag;
#pragma unroll
  for (int first = 0; first < kChunksPerRow; first += kLanes / kFrag) {
    const int c = first + lane / kFrag;
    Halves x[kFrags], y[kFrags];
#pragma unroll
    for (int i = 0; i < kFrags; ++i) {
      x[i] = std::bit_cast<Halves>(a[place_of(wave_top() + kFrag * i + row, c)]);
      y[i] = std::bit_cast<Halves>(b[place_of(wave_left() + kFrag * i + row, c)]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kFrags; ++i)
#pragma unroll
        for (int j = 0; j < kFrags; ++j)
          sums.value[i][j] =
              __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x[i].at[half], y[j].at[half], sums.value[i][j], 0, 0, 0);
  }
}

class MfmaCores {
 public:
  static constexpr int kTile = gpu::kTile, kThreads = kMfmaThreads;
  using Sums = MfmaSums;

  template <Along kA, Along kB>
  static constexpr size_t shared_bytes() {
    return 0;  // beside the stages
  }

  template <Along kA, Along kB, class RowsA, class RowsB>
  __device__ static void multiply(const TileOperand<kA, RowsA>& operand_a, const TileOperand<kB, RowsB>& operand_b,
                                  int64_t depth, Sums& sums) {
    __shared__ Chunk stages[2][2][kTileChunks];
    TileLoader<kA, RowsA> a(operand_a);
    TileLoader<kB, RowsB> b(operand_b);
    const auto fetch = [&](int64_t step) {
      a.fetch(step * kDepth);
      b.fetch(step * kDepth);
    };
    const auto store = [&](int64_t step) {
      a.store(stages[step % 2][0]);
      b.store(stages[step % 2][1]);
    };
    const int64_t steps = (depth + kDepth - 1) / kDepth;
    fetch(0);
    store(0);
    for (int64_t step = 0; step < steps; ++step) {
      __syncthreads();  // the stage has come, and the one before has been read
      if (step + 1 < steps) fetch(step + 1);
      multiply_stages(stages[step % 2][0], stages[step % 2][1], sums);
      if (step + 1 < steps) store(step + 1);
    }
  }

  // Sums begin as what they are added to. At the end each load would wait for the store before it.
  template <class U, class Visit>
  __device__ static void start(Sums& sums, bool add, const Visit& visit) {
    uint32_t before[kFrags][kFrags][kLaneSums] = {};
    if (add)
      for_each_sum([&](int i, int j, int k, int row, int column) { visit(row, column, Before{before[i][j][k]}); });
    for_each_sum([&](int i, int j, int k, int, int) { sums.value[i][j][k] = from_bits(U{}, before[i][j][k]); });
  }

  template <class Visit>
  __device__ static void store_tile(const Sums& sums, const Visit& visit) {
    for_each_sum([&](int i, int j, int k, int row, int column) { visit(row, column, sums.value[i][j][k]); });
  }

  struct Before {
    uint32_t& bits;
  };
  __device__ static void store_values(const float* from, Before before, bool) {
    before.bits = std::bit_cast<uint32_t>(*from);
  }
  __device__ static void store_values(const bf16* from, Before before, bool) { before.bits = from->bits; }
  template <class U>
  __device__ static void store_values(U* to, float sum, bool) {
    *to = from_float<U>(sum);
  }

 private:
  static constexpr int kLaneSums = kFrag * kFrag / kLanes;  // of a fragment
  __device__ static float from_bits(float, uint32_t bits) { return std::bit_cast<float>(bits); }
  __device__ static float from_bits(bf16, uint32_t bits) { return to_float(bf16{static_cast<uint16_t>(bits)}); }

  // A lane has the sums of one column of a fragment: of every eight rows four that follow each other.
  template <class Body>
  __device__ static void for_each_sum(const Body& body) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int top = wave_top() + lane / kFrag * 4, left = wave_left() + lane % kFrag;
#pragma unroll
    for (int i = 0; i < kFrags; ++i)
#pragma unroll
      for (int k = 0; k < kLaneSums; ++k)
#pragma unroll
        for (int j = 0; j < kFrags; ++j) body(i, j, k, top + kFrag * i + k / 4 * 8 + k % 4, left + kFrag * j);
  }
};

}  // namespace

const char* tensor_core_instructions() { return "mfma"; }

bool fits_tensor_cores(const SortedRows& x, std::span<const Weight> weights, const SortedRows& y) {
  return fits_tiles(x, weights, y);
}

bool multiply_on_tensor_cores(Stream& stream, ProductKind kind, const SortedRows& x, std::span<const int64_t> offsets,
                              std::span<const Weight> weights, const SortedRows& y, Store store) {
  return multiply_by_tiles<MfmaCores>(stream, kind, x, offsets, weights, y, store);
}

bool accumulate_on_tensor_cores(Stream& stream, const SortedRows& dy, const SortedRows& x,
                                std::span<const int64_t> offsets, TensorView dw_eNK) {
  return accumulate_by_tiles<MfmaCores>(stream, dy, x, offsets, dw_eNK);
}

}  // namespace mw::gpu
