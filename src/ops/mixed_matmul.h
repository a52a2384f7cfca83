// Products of bf16 activations with fp32 weights, for the router: it computes in fp32 also in bf16 runs.
//
// The precision is that of fp32: the error of a sum of L products is at most (L + 3) 2^-23 of the sum of their
// magnitudes. Only in mixed_matmul_d_input, whose result is rounded to bf16, each product may have an additional
// relative error of 2^-15. Results that are not finite in fp32 are not finite here, but mixed_matmul_d_input may return
// NaN instead of infinity. Magnitudes below 2^-126 may be lost.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "ops/matmul.h"

namespace mw {

// y[M, N] = x[M, K] W^T. x: bf16, y: f32, overwritten. Only `values` of the weight is read, here and below. M = 0 is
// legal. Deterministic for a given thread count.
void mixed_matmul(Stream& stream, TensorView x_MK, const Weight& weight, TensorView y_MN);

// dx[M, K] += dy[M, N] W. dy: f32, dx: bf16, added in fp32 and rounded once.
void mixed_matmul_d_input(Stream& stream, TensorView dy_MN, const Weight& weight, TensorView dx_MK);

// dw[N, K] += dy[M, N]^T x[M, K]. dy: f32, x: bf16, dw: f32.
void mixed_matmul_d_weight(Stream& stream, TensorView dy_MN, TensorView x_MK, TensorView dw_NK);

// Scratch bytes of any of these functions with up to `rows` rows, including the products that they call.
int64_t mixed_matmul_workspace_bytes(int64_t rows, int64_t n, int64_t k, DeviceKind device = DeviceKind::cpu);

}  // namespace mw
