// Biases of experts, beside the products of ops/matmul.h: a row of values for each expert of the model. Range i of the
// sorted rows belongs to expert experts[i], or i where `experts` is empty. ess sums the gradient of such a bias.
#pragma once

#include "ops/matmul.h"

namespace mw {

// y[r] += bias[expert of r], in place, for every sorted row r. y: f32 or bf16. bias: f32 [E, N]. The sum is fp32,
// rounded once. y.index must name no row twice.
void add_expert_bias(Stream& stream, SortedRows y_RN, std::span<const int64_t> offsets,
                     std::span<const int32_t> experts, TensorView bias_EN);

// sums[r] += <dy[r], bias[expert of r]>: what a bias adds to the gradient of the weight of its expert's output. sums:
// f32, by sorted row.
void expert_bias_products(Stream& stream, SortedRows dy_RN, std::span<const int64_t> offsets,
                          std::span<const int32_t> experts, TensorView bias_EN, TensorView sums_R);

}  // namespace mw
