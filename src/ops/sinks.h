// Attention sinks: one logit for each head that takes part in its softmax and has no value. They need no attention of
// their own: sinks scale what attention computed without them.
#pragma once

#include "ops/attention.h"

namespace mw {

// In place, on what attention() wrote for `shape` on this stream: o[t] *= exp(lse[t] - lse'[t]) and lse = lse', where
// lse' = log(exp(lse) + exp(sink)). sinks_H: f32 [H], not scaled by shape.scale. o is rounded once more.
// attention_backward then takes these o and lse, and gives the gradients of attention with sinks.
void add_sinks(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh, TensorView lse_HT);

// d_sinks[h] -= sum over tokens of exp(sink - lse) * delta, with lse from add_sinks and delta from attention_backward,
// whose other operands are of `dtype`. d_sinks: f32 [H], accumulated. Summed in an order that does not depend on the
// thread count.
void sinks_backward(Stream& stream, const AttentionShape& shape, DType dtype, TensorView sinks_H, TensorView lse_HT,
                    TensorView delta_HT, TensorView d_sinks_H);

}  // namespace mw
