// Causal attention with grouped KV heads, tiled with an online softmax as in FlashAttention (Dao et al. 2022): no S x S
// tensor is stored.
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
  bool documents = false;  // documents, or a window, hide keys: both passes take first_T
  int64_t past = 0;        // keys of each sequence before its first query; forward only
};

// Initial value of the running maxima, below any score. Finite, also times a scale of up to 1e8 and log2(e), so that a
// query that has seen no key yet does not compute inf - inf.
constexpr float kLowestScore = -1e30f;

// Scratch bytes of either pass, at most, on a stream of `threads` threads. On the CPU, forward needs a few tiles per
// thread; backward also needs the fp32 d_k and d_v of one (sequence, KV head) per thread. On a GPU with bf16, the
// library's backward pass, or gradients of scores that own kernels store, take up to about 1 GiB (the former more
// beyond 16384 tokens per sequence). Fewer sequences or heads can need more.
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int threads,
                                  DeviceKind device = DeviceKind::cpu);

// o[t] = softmax over s <= t in the same sequence of scale * q[t].k[s], times v[s]; with first_T also restricted to s
// >= first[t]. first_T: i32 [T], positions in their sequence, not checked: 0 <= first[t] <= the position of t,
// nondecreasing within a sequence. Tiles of keys that lie completely before the first visible key cost nothing.
// q: [T, H, h], k: [T, Hkv, h], v: [T, Hkv, hv], o: [T, H, hv], all f32 or all bf16; lse_HT: f32 [H, T], log-sum-exp of
// the scaled scores, saved for backward; the backend chooses its own order of heads and tokens. Any h. Sums are fp32; a
// GPU may round probabilities to bf16 when the operands are bf16, which begin at multiples of 16 bytes there.
// Overwrites o and lse. Deterministic for any thread count. With shape.past > 0 the positions of a sequence's queries
// begin at `past`, and k and v are [B * R, Hkv, ..] with any R >= past + S: rows 0 to past + S - 1 of each R are the
// keys of a sequence, the others are not read.
void attention(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh, TensorView v_TGh,
               TensorView o_THh, TensorView lse_HT, TensorView first_T = {});

// d_q, d_k, d_v (same dtype as q) are overwritten. o and lse must come from the forward pass on this stream, with the
// same first_T. Threads share the work by (sequence, KV head). Deterministic for any thread count; when the stream is
// not deterministic, a GPU's library may accumulate d_q in any order. delta_HT, where given: f32 [H, T], in the order
// of lse; overwritten by <o, d_o> of each head and token, which the gradient of a softmax subtracts.
void attention_backward(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                        TensorView v_TGh, TensorView o_THh, TensorView lse_HT, TensorView d_o_THh, TensorView d_q_THh,
                        TensorView d_k_TGh, TensorView d_v_TGh, TensorView first_T = {}, TensorView delta_HT = {});

// On a GPU: the implementation that attention and its gradient use on this stream, with the reason when it is not the
// library: "cuDNN 9.14.0", "own kernels on tensor cores (...)", "own kernels (...)". Also prepares that implementation.
std::string describe_attention(Stream& stream, const AttentionShape& shape, DType dtype);

}  // namespace mw
