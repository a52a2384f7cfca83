// AdamW (Loshchilov & Hutter 2019) with decoupled decay, on fp32 master weights, as torch.optim.AdamW computes it.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct AdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

// w -= lr * decay * w; then w -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps), with m and v updated
// from grad * grad_scale (the clip factor). step counts from 1. Same element count; grad f32 or bf16, m and v both f32
// or both bf16, w f32 or u16. Updates w, m, v in place; w before m and v are rounded. To bf16 they are rounded up or
// down by chance (step, value and weight decide, nothing else): to the nearest, a v that hardly changes would never
// move. copy_bf16: overwritten with w rounded to bf16; empty: none is wanted. Where w is u16 it has the rests of fp32
// weights whose nearest bf16 are in copy_bf16 (SplitFloat in base/dtype.h): read and updated together, as in one
// piece (but ties of copy_bf16 go away from 0, not to even).
void adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale, TensorView grad,
           TensorView w, TensorView m, TensorView v, TensorView copy_bf16 = {});

}  // namespace mw
