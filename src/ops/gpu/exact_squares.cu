// Sums of squares without rounding of the total (core/exact_sum.h).
#include <algorithm>
#include <vector>

#include "core/exact_sum.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/square_tiles.h"

namespace mw::gpu {
namespace {

constexpr int64_t kMostSquareBlocks = 1024;

// One warp sums a piece, its lanes every 32nd element; the first lane adds the sum to the limbs, in integers.
template <class T>
__global__ void __launch_bounds__(kThreads)
    exact_squares_kernel(const T* values, int64_t count, int64_t piece, int64_t pieces, unsigned long long* limbs) {
  __shared__ unsigned long long own[ExactSum::kLimbs];
  if (threadIdx.x < ExactSum::kLimbs) own[threadIdx.x] = 0;
  __syncthreads();
  constexpr int kLanes = 32, kPieces = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  __shared__ double lanes[kPieces][kLanes];
  double* sums = lanes[threadIdx.x / kLanes];
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kPieces; first < pieces;
       first += static_cast<int64_t>(gridDim.x) * kPieces) {
    const int64_t begin = (first + threadIdx.x / kLanes) * piece, end = begin + piece < count ? begin + piece : count;
    double sum = 0;
    for (int64_t i = begin + lane; i < end; i += kLanes) {
      const auto value = static_cast<double>(to_float(values[i]));
      sum += value * value;
    }
    sums[lane] = sum;
    __syncthreads();
    if (lane == 0) {
      for (int i = 1; i < kLanes; ++i) sum += sums[i];
      const ExactSum::Terms terms = ExactSum::terms(sum);
      for (int i = 0; i < 3; ++i)
        if (terms.first + i < ExactSum::kLimbs) atomicAdd(&own[terms.first + i], terms.values[i]);
    }
    __syncthreads();
  }
  if (threadIdx.x < ExactSum::kLimbs) atomicAdd(&limbs[threadIdx.x], own[threadIdx.x]);
}

struct Two {
  float left = 0, right = 0;
};

// Neighbouring elements of a row; those outside are 0.
template <class T>
__device__ Two load_two(const T* row, int64_t column, int64_t columns) {
  if (column >= columns) return {};
  if (columns % 2 != 0) return {to_float(row[column]), column + 1 < columns ? to_float(row[column + 1]) : 0.0f};
  struct alignas(2 * sizeof(T)) Pair {
    T left, right;
  };
  const Pair pair = *reinterpret_cast<const Pair*>(row + column);
  return {to_float(pair.left), to_float(pair.right)};
}

// The exact sum of a lane's values. It goes to memory only when a value adds to other limbs than the one before.
struct LaneSum {
  unsigned long long* limbs;
  int first = 0;
  unsigned long long values[3] = {};

  __device__ void add(float value) {
    if (value == 0) return;
    const ExactSum::Terms terms = ExactSum::terms(static_cast<double>(value));
    if (terms.first != first) write();
    first = terms.first;
    for (int i = 0; i < 3; ++i) values[i] += terms.values[i];
  }
  __device__ void write() {
    for (int i = 0; i < 3; ++i) {
      if (values[i] != 0) atomicAdd(&limbs[first + i], values[i]);
      values[i] = 0;
    }
  }
};

// One warp sums as many tiles as it has lanes, one after the other; each lane keeps the sum of one. The elements of a
// tile are loaded before they are added, because additions wait for each other.
template <class T>
__global__ void __launch_bounds__(kThreads)
    tile_squares_kernel(const T* values, int64_t matrices, int64_t n, int64_t k, unsigned long long* sets) {
  const int64_t strips = (n + kSquareRows - 1) / kSquareRows, columns = (k + kSquareColumns - 1) / kSquareColumns;
  const int64_t tiles = matrices * strips * columns, batches = (tiles + kSquareLanes - 1) / kSquareLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
  constexpr int kWarps = kThreads / kSquareLanes, kGroups = kSquareColumns / 8;
  LaneSum total{sets + blockIdx.x % SquareSums::kSets * ExactSum::kLimbs};
  // Warps without tiles go along: a wave of 64 lanes has two warps.
  for (int64_t first = blockIdx.x * static_cast<int64_t>(kWarps); first < batches;
       first += gridDim.x * static_cast<int64_t>(kWarps)) {
    float own = 0;
    for (int i = 0; i < kSquareLanes; ++i) {
      const int64_t tile = (first + threadIdx.x / kSquareLanes) * kSquareLanes + i;
      const int64_t strip = tile / columns, left = tile % columns * kSquareColumns + lane % 4 * 2;
      const int64_t row = strip % strips * kSquareRows + lane / 4, rows = tile < tiles ? n : 0;
      const T* const upper = values + (strip / strips * n + row) * k;
      Two pairs[2 * kGroups];
#pragma unroll
      for (int j = 0; j < 2 * kGroups; ++j)
        pairs[j] = row + j % 2 * 8 < rows ? load_two(upper + j % 2 * 8 * k, left + j / 2 * 8, k) : Two{};
      float sum = 0;
#pragma unroll
      for (const Two& pair : pairs) sum = add_square(add_square(sum, pair.left), pair.right);
      sum = sum_of_lanes(sum);
      if (lane == i) own = sum;
    }
    total.add(own);
  }
  total.write();
}

}  // namespace

ExactSum sum_squares_exactly(Stream& stream, std::span<const TensorView> tensors, int64_t piece) {
  ExactSum total;
  if (tensors.empty()) return total;
  WorkspaceFrame frame(stream.workspace());
  auto* limbs = frame.take<unsigned long long>(ExactSum::kLimbs);
  const std::span<int64_t> host = total.limbs();
  check(fill_async(limbs, 0, host.size_bytes(), native(stream)), "filling memory");
  for (const TensorView& tensor : tensors)
    with_float_type(tensor.dtype, [&](auto type) {
      using T = decltype(type);
      const int64_t count = tensor.numel(), pieces = ceil_div(count, piece), blocks = ceil_div(pieces, kThreads / 32);
      if (count > 0)
        launch(stream, exact_squares_kernel<T>, std::min<int64_t>(kMostSquareBlocks, blocks), kThreads, 0,
               tensor.as<T>(), count, piece, pieces, limbs);
    });
  stream.queue().read(host.data(), limbs, host.size_bytes());
  stream.wait();
  total.normalise();
  return total;
}

ExactSum sum_squares_by_tile(Stream& stream, std::span<const TensorView> matrices_eNK, const SquareSums& begun) {
  WorkspaceFrame frame(stream.workspace());
  constexpr int64_t kCount = SquareSums::kSets * ExactSum::kLimbs;
  auto* sets = static_cast<unsigned long long*>(begun.limbs.data);
  if (sets == nullptr) {
    sets = frame.take<unsigned long long>(kCount);
    check(fill_async(sets, 0, kCount * sizeof(*sets), native(stream)), "filling memory");
  }
  for (const TensorView& all : matrices_eNK)
    with_float_type(all.dtype, [&](auto type) {
      using T = decltype(type);
      const int64_t n = all.dim(1), k = all.dim(2);
      const int64_t tiles = all.dim(0) * ceil_div(n, kSquareRows) * ceil_div(k, kSquareColumns);
      const int64_t blocks = std::min(kMostSquareBlocks, ceil_div(tiles, kThreads));
      if (tiles > 0) launch(stream, tile_squares_kernel<T>, blocks, kThreads, 0, all.as<T>(), all.dim(0), n, k, sets);
    });
  std::vector<int64_t> host(kCount);
  stream.queue().read(host.data(), sets, kCount * sizeof(int64_t));
  stream.wait();
  return total_of(host);
}

}  // namespace mw::gpu
