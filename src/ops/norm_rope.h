// RMS normalisation of each head and rotation of the result, in one pass: queries and keys of models that normalise
// heads before the rotary embedding.
#pragma once

#include "ops/norm.h"
#include "ops/rope.h"

namespace mw {

// By how much heads are rotated: arguments of rope().
struct Rotation {
  TensorView cos_Sp, sin_Sp;
  RopePairs pairs = RopePairs::halves;
  TensorView first_T = {};
};

// y = rope(rms_norm(x)), normalised over h and rounded in between. x, y: f32 or bf16 [T, H, h], same dtype, y may alias
// x. gain: f32 [h]. rstd: f32 [T * H], saved for backward. Overwrites.
void norm_rope(Stream& stream, TensorView x_THh, TensorView gain, float eps, const Rotation& rotation, TensorView y_THh,
               TensorView rstd);

// The same y, bit for bit, from a saved rstd: backward recomputes y instead of saving it. y may alias x.
void norm_rope_apply(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                     TensorView y_THh);

// d [T, H, h], of x's dtype: the gradient of y, which becomes the gradient of x. d_gain: f32 [h], accumulated in an
// order that does not depend on the thread count. Takes scratch as rms_norm_backward does for [T * H, h].
void norm_rope_backward(Stream& stream, TensorView x_THh, TensorView gain, TensorView rstd, const Rotation& rotation,
                        TensorView d_THh, TensorView d_gain);

}  // namespace mw
