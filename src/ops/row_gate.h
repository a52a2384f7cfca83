// A sigmoid gate for each row of a matrix: the gate of shared experts.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// gate[r] = sigmoid(gate[r]), and x[r] *= gate[r], both in place. gate: f32 [R], logits before. x: f32 or bf16 [R, N];
// rounded once.
void gate_rows(Stream& stream, TensorView gate_R, TensorView x_RN);

// d_gate[r] *= gate[r] * (1 - gate[r]), in place: the gradient of the gate becomes that of its logit. Both f32 [R].
void gate_backward(Stream& stream, TensorView gate_R, TensorView d_gate_R);

}  // namespace mw
