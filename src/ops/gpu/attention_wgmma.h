// Causal attention by Hopper's warpgroups, by kernels of our own: contracts as in ops/attention.h, for bf16 operands.
// Tiles that documents or windows hide cost nothing. Tensors begin on borders of 16 bytes. Deterministic.
#pragma once

#include "ops/attention.h"
#include "ops/gpu/attention_tiles.h"

namespace mw::gpu {

// Whether the functions below take the shape on the stream's GPU.
bool warpgroups_take(Stream& stream, const AttentionShape& shape);

// Whether the gradients below are faster than the library's deterministic ones.
bool warpgroups_lead(Stream& stream, const AttentionShape& shape);

// lse: [H, B, S].
void attention_by_warpgroups(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                             TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T);

// Overwrites d_q, d_k and d_v; reads delta. Any order of lse.
void attention_gradients_by_warpgroups(Stream& stream, const AttentionShape& shape,
                                       const attention_detail::Operands<bf16>& x);

}  // namespace mw::gpu
