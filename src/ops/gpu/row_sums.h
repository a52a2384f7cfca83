// Adds the rows of a matrix to one row: the last part of norm and bias gradients.
#pragma once

#include "ops/gpu/launch.h"

namespace mw::gpu {

// A block has kSumColumns columns. Each of its threads sums one column over one of kSumSlices slices of the rows.
constexpr int kSumColumns = 32, kSumSlices = 32;

template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumSlices)
    add_rows_kernel(const T* rows, int64_t count, int64_t width, float* sums) {
  __shared__ float of_slice[kSumSlices][kSumColumns];
  const int own = static_cast<int>(threadIdx.x) % kSumColumns, slice = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + own;
  float sum = 0;
  if (column < width) {
#pragma unroll 8
    for (int64_t r = slice; r < count; r += kSumSlices) sum += to_float(rows[r * width + column]);
  }
  of_slice[slice][own] = sum;
  __syncthreads();
  if (slice > 0 || column >= width) return;
  for (int other = 1; other < kSumSlices; ++other) sum += of_slice[other][own];
  sums[column] += sum;
}

// sums [width] += the sum of `count` rows, in an order that depends on `count` alone.
template <class T>
void add_rows(Stream& stream, const T* rows, int64_t count, int64_t width, float* sums) {
  if (count == 0) return;
  launch(stream, add_rows_kernel<T>, ceil_div(width, kSumColumns), kSumColumns * kSumSlices, 0, rows, count, width,
         sums);
}

}  // namespace mw::gpu
