// Causal attention with grouped KV heads, tiled with a running softmax (Dao et al. 2022): no S x S tensor is kept.
#pragma once

#include <limits>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

struct AttentionShape {
  int64_t sequences = 0;   // B
  int64_t seq_len = 0;     // S; tokens are [B * S], sequence-major
  int64_t heads = 0;       // H
  int64_t kv_heads = 0;    // divides H: query head i reads KV head i / (H / kv_heads)
  int64_t head_dim = 0;    // h of queries and keys
  int64_t value_dim = 0;   // h of values and outputs
  float scale = 1.0f;      // of the scores, usually head_dim^-0.5
  bool documents = false;  // tokens see their own document alone: both passes take first_T
};

// What running maxima start from, below any score. Finite: a query that has seen no key yet must not subtract
// infinities.
constexpr float kLowestScore = -0.5f * std::numeric_limits<float>::max();

// Scratch that either pass takes at most on a stream of `threads` threads. On the CPU forward needs a few tiles per
// thread, backward the fp32 d_k and d_v of one (sequence, KV head) per thread as well. On a GPU the library's backward
// pass takes up to about 1 GiB (more beyond 16384 tokens per sequence) for bf16.
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int threads,
                                  DeviceKind device = DeviceKind::cpu);

// o[t] = softmax over s <= t in the same sequence of scale * q[t].k[s], times v[s]; with first_T over s >= first[t]
// too. first_T: i32 [T], positions in their sequence, which the caller vouches for: 0 <= first[t] <= the position of t,
// and never falling from one token of a sequence to the next. Keys before the first of a whole tile cost nothing.
// q: [T, H, h], k: [T, Hkv, h], v: [T, Hkv, hv], o: [T, H, hv], all f32 or all bf16; lse_HT: f32 [H, T], log-sum-exp of
// the scaled scores, saved for backward in the backend's own order of heads and tokens. Sums are fp32; a GPU may round
// probabilities of bf16 operands to bf16. Overwrites. Any h. Deterministic whatever the thread count.
void attention(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh, TensorView v_TGh,
               TensorView o_THh, TensorView lse_HT, TensorView first_T = {});

// d_q, d_k, d_v (same dtype as q) are overwritten. o and lse are those of the forward pass on this stream, first_T is
// as it was there. Work is shared by (sequence, KV head). Deterministic whatever the thread count; on a stream that
// need not be, a GPU's library may add to d_q in any order.
void attention_backward(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                        TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh, TensorView d_q_THh,
                        TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T = {});

// On a GPU: what attention and its gradient go to on this stream, and why not to the library where they do not: "cuDNN
// 9.14.0", "own kernels (...)". Prepares what the choice takes.
std::string describe_attention(Stream& stream, const AttentionShape& shape, DType dtype);

}  // namespace mw
