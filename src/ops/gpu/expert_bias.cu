// One wave takes a sorted row, and finds its range in the table of offsets by bisection.
#include "ops/expert_bias.h"

#include "ops/gpu/grouped_rows.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kRowsPerBlock = 4;
constexpr int kRowThreads = kRowsPerBlock * kWave;

struct Ranges {
  const int64_t* offsets;
  const int32_t* experts;  // null: the ranges' own numbers
  int64_t count;

  // r lies in one of the ranges.
  __device__ int64_t expert_of(int64_t r) const {
    int64_t begin = 0, end = count;  // the range is one of [begin, end)
    while (end - begin > 1) {
      const int64_t middle = (begin + end) / 2;
      if (offsets[middle] <= r) begin = middle;
      else end = middle;
    }
    return experts == nullptr ? begin : static_cast<int64_t>(experts[begin]);
  }
};

// The sorted row of this wave; offsets[count] and more: none.
__device__ int64_t row_of_wave(const Ranges& ranges) {
  return ranges.offsets[0] + static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWave;
}

template <class T, int N>
__global__ void add_kernel(Rows<T> y, Ranges ranges, const float* biases) {
  const int64_t r = row_of_wave(ranges);
  if (r >= ranges.offsets[ranges.count]) return;
  T* row = y.row(r);
  const float* bias = biases + ranges.expert_of(r) * y.width;
  for (int64_t i = static_cast<int64_t>(threadIdx.x % kWave) * N; i < y.width; i += kWave * N) {
    const Pack<T, N> before = load<N>(row + i);
    const Pack<float, N> values = load<N>(bias + i);
    Pack<float, N> sum;
#pragma unroll
    for (int k = 0; k < N; ++k) sum.at[k] = to_float(before.at[k]) + values.at[k];
    store(row + i, round_pack<T>(sum));
  }
}

template <class T, int N>
__global__ void products_kernel(Rows<const T> dy, Ranges ranges, const float* biases, float* sums) {
  const int64_t r = row_of_wave(ranges);
  if (r >= ranges.offsets[ranges.count]) return;  // the same for all lanes of a wave
  const T* row = dy.row(r);
  const float* bias = biases + ranges.expert_of(r) * dy.width;
  float sum = 0.0f;
  for (int64_t i = static_cast<int64_t>(threadIdx.x % kWave) * N; i < dy.width; i += kWave * N) {
    const Pack<T, N> d = load<N>(row + i);
    const Pack<float, N> values = load<N>(bias + i);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += to_float(d.at[k]) * values.at[k];
  }
  sum = reduce_wave(sum, Sum());
  if (threadIdx.x % kWave == 0) sums[r] += sum;
}

// Calls body with the elements of a pack of `rows` and the ranges, copied to the device.
template <class T, class Body>
void with_ranges(Stream& stream, const SortedRows& rows, std::span<const int64_t> offsets,
                 std::span<const int32_t> experts, const TensorView& bias_EN, const Body& body) {
  if (offsets.front() == offsets.back()) return;
  WorkspaceFrame frame(stream.workspace());
  const Ranges ranges{device_copy(stream, frame, offsets),
                      experts.empty() ? nullptr : device_copy(stream, frame, experts), std::ssize(offsets) - 1};
  constexpr int kPack = kWidePack<T>;
  const bool wide =
      rows.data.cols() % kPack == 0 && allow_packs<kPack>(rows.data.as<T>()) && allow_packs<kPack>(bias_EN.as<float>());
  with_pack<kPack>(wide, [&](auto pack) { body(pack, ranges); });
}

int64_t blocks_of(std::span<const int64_t> offsets) {
  return ceil_div(offsets.back() - offsets.front(), kRowsPerBlock);
}

}  // namespace

void add_expert_bias(Stream& stream, SortedRows y_RN, std::span<const int64_t> offsets,
                     std::span<const int32_t> experts, TensorView bias_EN) {
  with_float_type(y_RN.data.dtype, [&](auto type) {
    using T = decltype(type);
    with_ranges<T>(stream, y_RN, offsets, experts, bias_EN, [&](auto pack, const Ranges& ranges) {
      launch(stream, add_kernel<T, decltype(pack)::value>, blocks_of(offsets), kRowThreads, 0, rows_of<T>(y_RN), ranges,
             bias_EN.as<float>());
    });
  });
}

void expert_bias_products(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets,
                          std::span<const int32_t> experts, TensorView bias_EN, TensorView sums_R) {
  with_float_type(dy_RN.data.dtype, [&](auto type) {
    using T = decltype(type);
    with_ranges<T>(stream, dy_RN, offsets, experts, bias_EN, [&](auto pack, const Ranges& ranges) {
      launch(stream, products_kernel<T, decltype(pack)::value>, blocks_of(offsets), kRowThreads, 0,
             rows_of<const T>(dy_RN), ranges, bias_EN.as<float>(), sums_R.as<float>());
    });
  });
}

}  // namespace mw::gpu
