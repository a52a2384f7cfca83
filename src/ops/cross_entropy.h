// Softmax cross-entropy with its gradient, on one chunk of rows: the loss head walks the tokens in chunks, so that fp32
// logits of all tokens never exist at once.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

constexpr int32_t kIgnoreLabel = -100;

// For each row c with label != -100: loss[c] = logsumexp(logits[c]) - logits[c, label]; else loss[c] = 0.
// A label outside [0, V) is an internal error; a GPU, which cannot throw, gives NaN.
// logits: f32 [C, V]; labels: i32 [C], -100 or in [0, V); loss: f32 [C], overwritten.
// d_logits (f32 or bf16 [C, V], may alias logits when f32) = scale * (softmax - onehot), zero for ignored rows; an
// empty view leaves the gradient out.
void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV);

}  // namespace mw
