// RMS normalisation over the last axis: y = gain * x / sqrt(mean(x^2) + eps).
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// For operands that hold only some columns of each row (tensor parallelism): the width of a whole row, and a sum over
// the whole row for each row, f32 [rows]. Empty: the operands hold whole rows.
struct RowSums {
  TensorView sums;
  int64_t width = 0;
};

// x, y: f32 or bf16 [.., W], same dtype, y may alias x. gain: f32 [W]. rstd: f32 [rows], saved for backward; with an
// empty view it is not stored. Statistics in fp32. Overwrites. squares: whole-row sums of x^2.
void rms_norm(Stream& stream, TensorView x, TensorView gain, float eps, TensorView y, TensorView rstd,
              RowSums squares = {});

// sum = a + b rounded to their dtype, and y = rms_norm(sum), in one pass: the same bits as add and rms_norm. a, b, sum,
// y: same dtype and shape; sum may alias a or b.
void add_rms_norm(Stream& stream, TensorView a, TensorView b, TensorView gain, float eps, TensorView sum, TensorView y,
                  TensorView rstd);

// The same y, bit for bit, from a saved rstd: backward recomputes y instead of saving it. y may alias x.
void rms_norm_apply(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView y);

// Scratch bytes of rms_norm_backward: partial sums of d_gain over a bounded number of fixed blocks of rows. The other
// functions need none.
int64_t norm_workspace_bytes(int64_t rows, int64_t width, DeviceKind device = DeviceKind::cpu);

// d_x = gradient (+ d_residual when that view is not empty; d_x may alias d_y or d_residual), overwritten. d_gain: f32
// [W], accumulated in an order that does not depend on the thread count. products: whole-row sums of gain * d_y * x.
void rms_norm_backward(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView d_y,
                       TensorView d_residual, TensorView d_x, TensorView d_gain, RowSums products = {});

// One rank's contribution to RowSums: sums[r] = sum of gain * a * b over the local columns, in fp32; with an empty
// gain, of a * b. a, b: f32 or bf16 [.., W], same dtype and shape, may be the same; W = 0 is legal. gain: f32 [W].
// sums: f32 [rows], overwritten.
void row_products(Stream& stream, TensorView a, TensorView b, TensorView gain, TensorView sums);

}  // namespace mw
