// Copies and sums columns of matrices: joins and splits parts of attention heads, and repeats shared ones.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// The columns from `begin` on, in every row of a tensor (TensorView::rows and cols).
struct Columns {
  TensorView matrix;
  int64_t begin = 0;
};

// Copies `count` columns of x into y; other columns of y keep their values. When y has n times as many rows as x, each
// row of x is repeated n times: y[r] = x[r / n]. f32 or bf16, the same dtype. x and y must not overlap.
void copy_columns(Stream& stream, Columns x, Columns y, int64_t count);

// The gradient of copy_columns: y[r] = x[r * n] + .. + x[r * n + n - 1], summed in fp32 in that order. Overwrites these
// columns of y.
void sum_columns(Stream& stream, Columns x, Columns y, int64_t count);

}  // namespace mw
