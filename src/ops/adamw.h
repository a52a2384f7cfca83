// AdamW (Loshchilov & Hutter 2019) with decoupled decay, on fp32 master weights, as torch.optim.AdamW computes it.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct AdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

// The operands of one tensor, all with the same element count.
struct AdamWTensor {
  float lr = 0, decay = 0;
  TensorView grad, w, m, v, copy_bf16 = {};
};

// Of each tensor: w -= lr * decay * w; then w -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps), with m
// and v updated from grad * grad_scale (the clip factor). step counts from 1. Updates w, m and v in place; w is updated
// before m and v are rounded. A tensor's result does not depend on the others; a GPU updates small ones together.
//
// grad: f32 or bf16. m and v: both f32 or both bf16. w: f32, or u16 for split master weights.
// bf16 moments use deterministic stochastic rounding, a function of step, value and weight only: with rounding to
// nearest, a v that hardly changes would never move.
// copy_bf16: overwritten with w rounded to bf16; empty: no copy. With w in u16, w holds the low parts of split fp32
// weights (SplitFloat in base/dtype.h) and copy_bf16 the high parts: both are read and updated together, with the
// result of an fp32 w (except that ties of copy_bf16 round away from zero, not to even).
//
// A GPU divides and takes roots with a relative error of 2^-22, and takes second moments from 2^104 on for infinite.
void adamw(Stream& stream, const AdamW& rule, int64_t step, float grad_scale, std::span<const AdamWTensor> tensors);

}  // namespace mw
