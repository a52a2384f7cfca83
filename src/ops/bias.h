// The bias of a linear layer: one value for each column of its output.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// x += bias in every row, in place. x: f32 or bf16 [.., N]. bias: f32 [N]. The sum is fp32, rounded once.
void add_bias(Stream& stream, TensorView x, TensorView bias);

// d_bias += the sum of all rows of d, where d is the gradient of the layer's output: f32 or bf16 [.., N]. d_bias: f32
// [N]. Summed in fp32 in an order that does not depend on the thread count.
void bias_backward(Stream& stream, TensorView d, TensorView d_bias);

}  // namespace mw
