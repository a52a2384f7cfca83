// Elementwise helpers over whole tensors.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

void fill_zero(Stream& stream, TensorView x);
// y = x with conversion between f32 and bf16 (round to nearest even); same element count.
void convert(Stream& stream, TensorView x, TensorView y);
// out = a + b; all the same dtype, fp32 sum; out may alias either.
void add(Stream& stream, TensorView a, TensorView b, TensorView out);
// y = clamp(x, -limit, limit) (OLMoE's clip_qkv); y may alias x. A NaN passes.
void clamp(Stream& stream, TensorView x, float limit, TensorView y);
// d = 0 where |x| > limit, x being the tensor before clamp.
void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d);
// Sum of squares over all elements of tensors, each f32 or bf16, in double, in an order that does not depend on the
// thread count. Waits once for all of them.
double sum_squares(Stream& stream, std::span<const TensorView> tensors);
// True when every element of an f32 or bf16 tensor is finite.
bool all_finite(Stream& stream, TensorView x);

}  // namespace mw
