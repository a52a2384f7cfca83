// Muon (Jordan et al. 2024), as torch.optim.Muon computes it: the update of a matrix is its momentum, made orthogonal.
// A step consists of muon_momentum, orthogonalise and muon_update, in this order.
#pragma once

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct Muon {
  double momentum = 0.95;
  bool nesterov = true;
};

// With g = grad * grad_scale (the clip factor): m = momentum * m + (1 - momentum) * g, in place, and u = momentum * m +
// (1 - momentum) * g with the new m (Nesterov), or u = m. Operands have the same element count. grad: f32 or bf16. u:
// f32, overwritten; computed before m is rounded. m: f32, or bf16 with deterministic stochastic rounding, a function of
// step, value and gradient only.
void muon_momentum(Stream& stream, const Muon& rule, int64_t step, float grad_scale, TensorView grad, TensorView m,
                   TensorView u);

// Each of the matrices x[i] divided by its Frobenius norm, or by kLeastNorm if that is larger. x_bNK: f32 [b, N, K]. y:
// as x, f32 or bf16, overwritten; must not overlap x. sums: scratch, f32 [b, kNormParts]. Sums are in an order that
// depends on N * K only.
constexpr double kLeastNorm = 1e-7;
void normalise_matrices(Stream& stream, TensorView x_bNK, TensorView sums, TensorView y_bNK);

// Scratch of orthogonalise: two tensors of at least b * min(N, K)^2 elements and one of the elements of x, all in
// `dtype`, and the sums of normalise_matrices.
struct OrthogonaliseScratch {
  TensorView next, gram, square, sums;
};

// Replaces the singular values of each matrix x[i] by values near 1 (0.68 to 1.18; smaller where they are below 1 % of
// the norm): normalise_matrices, then five Newton-Schulz steps x = a x + (b A + c A A) x with A = x x^T (of x^T where
// N > K), a = 3.4445, b = -4.775, c = 2.0315. A zero matrix stays zero. x_bNK: f32 [b, N, K], its memory is overwritten
// with the result in `dtype`, which is returned as a view. dtype: of the products' operands; bf16 only on GPUs and with
// N and K multiples of 64. Scratch: also what esmm, esmm_d_input and estmm need. Deterministic as these are; the result
// for one matrix does not depend on the others.
TensorView orthogonalise(Stream& stream, TensorView x_bNK, DType dtype, const OrthogonaliseScratch& scratch);

// w = w * (1 - lr * decay) - rate * x, in place. Operands have the same element count. x: f32 or bf16. w and copy_bf16:
// as in adamw (ops/adamw.h).
void muon_update(Stream& stream, float lr, float decay, float rate, TensorView x, TensorView w,
                 TensorView copy_bf16 = {});

}  // namespace mw
