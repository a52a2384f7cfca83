// Sums of squares without rounding of the total (core/exact_sum.h).
#include <algorithm>

#include "core/exact_sum.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

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

}  // namespace mw::gpu
