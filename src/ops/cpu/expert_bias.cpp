#include "ops/expert_bias.h"

#include <algorithm>

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

// Calls body(sorted row, place of that row, expert) for all rows, on all threads.
template <class Body>
void for_rows(Stream& stream, const SortedRows& rows, std::span<const int64_t> offsets,
              std::span<const int32_t> experts, const Body& body) {
  const int64_t first = offsets.front(), count = offsets.back() - first;
  for_blocks(stream, count, rows_per_block(rows.data.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t r = first + begin; r < first + end; ++r) {
      const auto range = std::upper_bound(offsets.begin(), offsets.end(), r) - offsets.begin() - 1;
      const int64_t expert = experts.empty() ? range : experts[static_cast<size_t>(range)];
      body(r, rows.index == nullptr ? r : int64_t{rows.index[r]}, expert);
    }
  });
}

}  // namespace

void add_expert_bias(Stream& stream, SortedRows y_RN, std::span<const int64_t> offsets,
                     std::span<const int32_t> experts, TensorView bias_EN) {
  const int64_t width = y_RN.data.cols();
  const float* values = bias_EN.as<float>();
  with_float_type(y_RN.data.dtype, [&]<class T>(T) {
    T* first = y_RN.data.as<T>();
    for_rows(stream, y_RN, offsets, experts, [=](int64_t, int64_t at, int64_t expert) {
      T* y = first + at * width;
      const float* bias = values + expert * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) y[i] = from_float<T>(to_float(y[i]) + bias[i]);
    });
  });
}

void expert_bias_products(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets,
                          std::span<const int32_t> experts, TensorView bias_EN, TensorView sums_R) {
  const int64_t width = dy_RN.data.cols();
  const float* values = bias_EN.as<float>();
  float* sums = sums_R.as<float>();
  with_float_type(dy_RN.data.dtype, [&]<class T>(T) {
    const T* first = dy_RN.data.as<T>();
    for_rows(stream, dy_RN, offsets, experts, [=](int64_t r, int64_t at, int64_t expert) {
      const T* dy = first + at * width;
      const float* bias = values + expert * width;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += to_float(dy[i]) * bias[i];
      sums[r] += sum;
    });
  });
}

}  // namespace mw::cpu
