// Feed-forward activations, dense and per expert. h holds the pre-activation: [R, 2, F] (gate, then up) for swiglu,
// [R, 1, F] else.
#pragma once

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// a[R, F] = activation(h). h, a: same dtype, f32 or bf16. Overwrites.
void activate(Stream& stream, Activation kind, TensorView h_RcF, TensorView a_RF);

// Backward with the activation recomputed from h. d_a: the gradient that reached the activated row, *before* the row
// weight.
//   d_h[r]      = weight[r] * d_activation(h[r]) * d_a[r]          (overwritten; may alias h)
//   a[r]        = weight[r] * activation(h[r])                     (overwritten, for weight gradients; may alias d_a)
//   d_weight[r] = <d_a[r], activation(h[r])>                       (f32 [R], overwritten)
// weight and d_weight (f32 [R]) may be empty views: weight 1, no d_weight.
void activate_backward(Stream& stream, Activation kind, TensorView h_RcF, TensorView d_a_RF, TensorView weight_R,
                       TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R);

}  // namespace mw
