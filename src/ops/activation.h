// Feed-forward activations, for dense layers and experts. h is the pre-activation: [R, 2, F] (gate, then up projection)
// for swiglu and clamped_swiglu, otherwise [R, 1, F].
#pragma once

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// An activation with its constants, which only clamped_swiglu has.
struct ActivationRule {
  ActivationRule(Activation of_kind, float alpha_of = 0, float limit_of = 0)
      : kind(of_kind), alpha(alpha_of), limit(limit_of) {}
  Activation kind;
  float alpha, limit;
};

// a[R, F] = activation(h). h, a: same dtype, f32 or bf16. Overwrites.
void activate(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView a_RF);

// Backward; the activation is recomputed from h. d_a is the gradient of the activated row *before* the row weight is
// applied.
//   d_h[r]      = weight[r] * d_activation(h[r]) * d_a[r]          (overwritten; may alias h)
//   a[r]        = weight[r] * activation(h[r])                     (overwritten, for weight gradients; may alias d_a)
//   d_weight[r] = <d_a[r], activation(h[r])>                       (f32 [R], overwritten)
// weight and d_weight (f32 [R]) may be empty views: then weight is 1 and d_weight is not computed. Beyond a clamp the
// derivative is 0.
void activate_backward(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView d_a_RF,
                       TensorView weight_R, TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R);

}  // namespace mw
