// Elementwise operators on whole tensors, and reductions over all of their elements.
#pragma once

#include <span>

#include "core/exact_sum.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// x = 0; any dtype.
void fill_zero(Stream& stream, TensorView x);
void fill_zeros(Stream& stream, std::span<const TensorView> tensors);  // a GPU fills small ones together
// y = x with conversion between f32 and bf16 (round to nearest even); same element count.
void convert(Stream& stream, TensorView x, TensorView y);
// out = a + b; all the same dtype, f32 or bf16, and element count; summed in fp32; out may alias either. Overwrites.
void add(Stream& stream, TensorView a, TensorView b, TensorView out);
// out = a x + b y; as add.
void scaled_sum(Stream& stream, float a, TensorView x, float b, TensorView y, TensorView out);
// y = clamp(x, -limit, limit) (OLMoE's clip_qkv); y may alias x. A NaN passes.
void clamp(Stream& stream, TensorView x, float limit, TensorView y);
// Gradient of clamp, in place: sets d to 0 where |x| > limit; x is the tensor before clamp.
void clamp_backward(Stream& stream, TensorView x, float limit, TensorView d);
// Sum of squares over all elements of the tensors, each f32 or bf16, accumulated in double in an order that does not
// depend on the thread count. Waits for the stream once.
double sum_squares(Stream& stream, std::span<const TensorView> tensors);
// The same without rounding of the total: each piece of `piece` elements from the beginning of a tensor (the last may
// be shorter) is summed in double in an order that depends on its length alone, and the sums of pieces are added
// exactly. The total does not depend on which tensors hold the pieces. Normalised. Waits for the stream once.
ExactSum sum_squares_exactly(Stream& stream, std::span<const TensorView> tensors, int64_t piece);
// Whether every element of an f32 or bf16 tensor is finite. Waits for the stream.
bool all_finite(Stream& stream, TensorView x);

}  // namespace mw
