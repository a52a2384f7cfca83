// Columns of a matrix's rows, copied and summed: how heads of several parts are put together and taken apart.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// Columns from `begin` on of every row of a tensor (TensorView::rows and cols).
struct Columns {
  TensorView matrix;
  int64_t begin = 0;
};

// `count` columns of y = those of x; the others of y stay as they are. Where y has n rows for each of x, all n are the
// same: y[r] = x[r / n]. f32 or bf16, one dtype. x and y must not overlap.
void copy_columns(Stream& stream, Columns x, Columns y, int64_t count);

// The other way, the gradient of copying: y[r] = x[r * n] + .. + x[r * n + n - 1], summed in fp32 in that order.
void sum_columns(Stream& stream, Columns x, Columns y, int64_t count);

}  // namespace mw
