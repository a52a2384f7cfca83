// Causal attention by the vendor's library (cuDNN), if available: contracts as in ops/attention.h, for bf16 operands.
#pragma once

#include <string>

#include "ops/attention.h"

namespace mw::gpu {

// Whether the functions below take the shape on the stream's GPU. Always the same for a shape and stream, as long as
// the stream stays deterministic or not.
bool library_takes(Stream& stream, const AttentionShape& shape);

// lse and delta: [B, H, S]. Deterministic when the stream is.
void attention_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                          TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView first_T);
void attention_backward_by_library(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                                   TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh,
                                   TensorView d_q_THh, TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T,
                                   TensorView delta_HT);

// Only bf16 goes to the library.
inline bool is_for_library(DType dtype) { return dtype == DType::bf16; }

// The library's name and version, and the reason why it does not take the shape on the stream's GPU; empty: it does.
struct LibraryChoice {
  std::string library, refusal;
};
LibraryChoice choose_library(Stream& stream, const AttentionShape& shape);

// Scratch bytes of either pass, at most, on any stream; 0 where none of this machine's GPUs supports the library's
// attention for the shape.
int64_t attention_library_workspace_bytes(const AttentionShape& shape);

}  // namespace mw::gpu
