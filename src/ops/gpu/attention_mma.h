// Causal attention on NVIDIA's tensor cores, by kernels of our own: contracts as in ops/attention.h, for bf16 operands.
// Tiles that documents or windows hide cost nothing. Tensors begin on borders of 16 bytes. Deterministic.
#pragma once

#include "ops/attention.h"
#include "ops/gpu/attention_tiles.h"

namespace mw::gpu {

// Whether the functions below take the shape. lse and delta: [H, B, S].
bool tensor_cores_take(const AttentionShape& shape);

void attention_on_tensor_cores(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                               TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T);

// Overwrites d_q, d_k and d_v; reads delta.
void attention_gradients_on_tensor_cores(Stream& stream, const AttentionShape& shape,
                                         const attention_detail::Operands<bf16>& x);

}  // namespace mw::gpu
