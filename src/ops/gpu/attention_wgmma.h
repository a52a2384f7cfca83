// Causal attention by Hopper's warpgroups, by kernels of our own: contracts as in ops/attention.h, for bf16 operands.
// Tiles that documents or windows hide cost nothing. Tensors begin on borders of 16 bytes. Deterministic.
#pragma once

#include "base/library_attention.h"
#include "ops/attention.h"
#include "ops/gpu/attention_tiles.h"

namespace mw::gpu {

// Whether the functions below take the shape on the stream's GPU.
bool warpgroups_take(Stream& stream, const AttentionShape& shape);

// Whether the gradients below, with so much scratch, are faster than the library's.
bool warpgroups_lead(Stream& stream, const AttentionShape& shape, int64_t scratch_bytes);

// lse: [H, B, S].
void attention_by_warpgroups(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                             TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T);

// Whether there are enough tiles of keys for the stream's processors.
bool keys_occupy_processors(Stream& stream, const AttentionShape& shape);

// Of what the gradients of scores are stored at a time in so much scratch; {}: of nothing. Parts are equal, but for the
// last, and occupy the processors, unless one is the whole.
library_attention::Part choose_stored_part(Stream& stream, const AttentionShape& shape, int64_t scratch_bytes);

// Overwrites d_q, d_k and d_v; reads delta. Any order of lse. Takes at most scratch_bytes of the stream's workspace,
// for gradients of scores: with those stored, five products make the gradients instead of seven.
void attention_gradients_by_warpgroups(Stream& stream, const AttentionShape& shape,
                                       const attention_detail::Operands<bf16>& x, int64_t scratch_bytes);

}  // namespace mw::gpu
