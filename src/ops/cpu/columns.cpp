#include "ops/columns.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/loops.h"

namespace mw::cpu {

void copy_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  const int64_t rows = y.matrix.rows(), x_width = x.matrix.cols(), y_width = y.matrix.cols();
  if (rows == 0) return;
  const int64_t copies = rows / x.matrix.rows(), element = size_of(x.matrix.dtype);
  const auto* from = static_cast<const std::byte*>(x.matrix.data);
  auto* to = static_cast<std::byte*>(y.matrix.data);
  for_blocks(stream, rows, rows_per_block(count), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(to + (r * y_width + y.begin) * element, from + (r / copies * x_width + x.begin) * element,
                  static_cast<size_t>(count * element));
  });
}

void sum_columns(Stream& stream, Columns x, Columns y, int64_t count) {
  const int64_t rows = y.matrix.rows(), x_width = x.matrix.cols(), y_width = y.matrix.cols();
  if (rows == 0) return;
  const int64_t parts = x.matrix.rows() / rows;
  with_float_type(x.matrix.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.matrix.as<T>() + x.begin;
    T* to = y.matrix.as<T>() + y.begin;
    for_blocks(stream, rows, rows_per_block(count * parts), [=](int64_t begin, int64_t end) {
      constexpr int64_t kAtATime = 64;
      float sums[kAtATime];
      for (int64_t r = begin; r < end; ++r)
        for (int64_t first = 0; first < count; first += kAtATime) {
          const int64_t n = std::min(kAtATime, count - first);
          std::fill_n(sums, n, 0.0f);
          for (int64_t part = 0; part < parts; ++part) {
            const T* row = from + (r * parts + part) * x_width + first;
#pragma omp simd
            for (int64_t j = 0; j < n; ++j) sums[j] += to_float(row[j]);
          }
          for (int64_t j = 0; j < n; ++j) to[r * y_width + first + j] = from_float<T>(sums[j]);
        }
    });
  });
}

}  // namespace mw::cpu
