// Causal attention by the vendor's library (cuDNN), where there is one: contracts as in ops/attention.h, for bf16
// operands.
#pragma once

#include "ops/attention.h"

namespace mw::gpu {

// Both are false, with nothing done, where the library is missing or does not take the shape on the stream's GPU; for
// one shape and stream they agree, since the library has its own order of lse: [B, H, S]. Deterministic.
bool attention_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                          TensorView v_TGh, TensorView o_THh, TensorView lse_HT);
bool attention_backward_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                                   TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh,
                                   TensorView d_q_THh, TensorView d_k_TGh, TensorView d_v_TGh);

// What either of them takes at most; 0 where none of this machine's GPUs has the library's attention for the shape.
int64_t attention_library_workspace_bytes(const AttentionShape& shape);

}  // namespace mw::gpu
