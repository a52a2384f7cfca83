// Causal attention by the vendor's library (cuDNN), where there is one: contracts as in ops/attention.h, for bf16
// operands.
#pragma once

#include <string>

#include "ops/attention.h"

namespace mw::gpu {

// Both are false, with nothing done, where the library is missing or does not take the shape on the stream's GPU; for
// one shape and stream they agree, since the library has its own order of lse: [B, H, S]. Deterministic where the
// stream is, which must not change between them.
bool attention_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                          TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T);
bool attention_backward_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                                   TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh,
                                   TensorView d_q_THh, TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T);

// The library gets bf16 alone.
inline bool is_for_library(DType dtype) { return dtype == DType::bf16; }

// The library's name and version, and why it does not take the shape on the stream's GPU; no reason: it does.
struct LibraryChoice {
  std::string library, refusal;
};
LibraryChoice choose_library(Stream& stream, const AttentionShape& shape);

// What either of them takes at most on any stream; 0 where none of this machine's GPUs has the library's attention for
// the shape.
int64_t attention_library_workspace_bytes(const AttentionShape& shape);

}  // namespace mw::gpu
