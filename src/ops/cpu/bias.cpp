#include "ops/bias.h"

#include "ops/cpu/loops.h"

namespace mw::cpu {

void add_bias(Stream& stream, TensorView x, TensorView bias) {
  const int64_t rows = x.rows(), width = x.cols();
  const float* values = bias.as<float>();
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* first = x.as<T>();
    for_blocks(stream, rows, rows_per_block(width), [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = first + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) row[i] = from_float<T>(to_float(row[i]) + values[i]);
      }
    });
  });
}

void bias_backward(Stream& stream, TensorView d, TensorView d_bias) {
  constexpr int64_t kColumns = 64;  // of a block, so that even narrow biases occupy all threads
  const int64_t rows = d.rows(), width = d.cols();
  float* sums = d_bias.as<float>();
  with_float_type(d.dtype, [&](auto type) {
    using T = decltype(type);
    const T* first = d.as<T>();
    for_blocks(stream, width, kColumns, [=](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r) {
        const T* row = first + r * width;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) sums[i] += to_float(row[i]);
      }
    });
  });
}

}  // namespace mw::cpu
