// Multi-head latent attention, MLA (DeepSeek-V2, section 2.1). Keys and values of all heads are projected from one
// narrow latent, plus one rotary key shared by all heads; queries are projected from a latent of their own, or directly
// from the input. Forward saves the latents; backward recomputes keys, values and compressed queries.
#pragma once

#include "model/attention.h"
#include "model/key_value_cache.h"
#include "ops/matmul.h"
#include "ops/rope.h"

namespace mw {

// Weights are [out, in]. Q and C: ranks of the latents; H heads with n query/key values without position, r rotary
// ones, and v output values. Either wq, or wq_a, q_gain and wq_b.
struct LatentWeights {
  Weight wq;                   // [H (n + r), D]
  Weight wq_a, wq_b;           // [Q, D], [H (n + r), Q]
  Weight wkv_a, wkv_b;         // [C + r, D]: latent, then shared key; [H (n + v), C]: per head, key then value
  Weight wo;                   // [D, H v]
  TensorView q_gain, kv_gain;  // f32 [Q], [C]
  TensorView d_wq, d_wq_a, d_wq_b, d_wkv_a, d_wkv_b, d_wo, d_q_gain, d_kv_gain;
};

// Saved for backward: the latents before their norms, the rotated shared key, the output and its log-sum-exp; also the
// rotated queries where they are not compressed.
struct LatentSaved {
  TensorView q;            // [T, H, n + r]
  TensorView c_q, q_rstd;  // [T, Q]
  TensorView c_kv, kv_rstd, k_rope, o, lse;
};

// Flat scratch shared by all layers. latent_*: normed, [T, Q] and [T, C]. kv_a: [T, C + r]. kv_heads: [T, H, n + v].
struct LatentScratch {
  TensorView q, k, v, d_q, d_k, d_v, d_o;
  TensorView latent_q, latent_kv, d_latent, kv_a, kv_heads;
  TensorView rope_cos, rope_sin;  // f32 [S_max, r/2]
};

class LatentAttentionBlock : public Attention {
 public:
  LatentAttentionBlock(const AttentionSpec& spec, LatentWeights weights, LatentSaved saved, LatentScratch scratch,
                       KeyValueCache cache = {});

  void forward(Stream& stream, TensorView x_TD, const Sequences& sequences, TensorView out_TD) override;
  void backward(Stream& stream, const Sequences& sequences, TensorView d_out_TD, TensorView d_x_TD,
                Store store) override;
  // May be called at any time after backward, which leaves gradients in the buffers of the saved tensors.
  void backward_inputs(Stream& stream, TensorView x_TD, Store store) override;

 private:
  struct Views {
    TensorView q, k, v;  // [T, H, width]
  };
  // The saved tensors of these tokens, or their gradients.
  struct Kept {
    TensorView queries;       // [T, Q], or [T, H (n + r)] uncompressed
    TensorView c_kv, k_rope;  // [T, C], [T, r]
  };
  bool compresses_queries() const { return spec_.latent.q_rank > 0; }
  TensorView heads(TensorView flat, int64_t tokens, int64_t width) const;
  Kept kept(int64_t tokens) const;
  // Rotates the last r values of every head, in place.
  void rotate(Stream& stream, TensorView heads_THh, const Sequences& sequences, RopeDirection direction);
  // Computes queries, keys and values as the attention operator reads them, from the saved tensors; leaves the normed
  // latents in scratch.
  Views prepare(Stream& stream, int64_t tokens, const Sequences& sequences, bool store_statistics);
  // Compute the gradients of the saved tensors, in their place, from those of queries, or of keys and values.
  void backward_queries(Stream& stream, TensorView d_q_THh, const Sequences& sequences, Store store);
  void backward_keys(Stream& stream, TensorView d_k_THh, TensorView d_v_THv, const Sequences& sequences, Store store);
  // Computes the gradient of a latent, in its place, from that of its normed form.
  void backward_norm(Stream& stream, TensorView latent, TensorView gain, TensorView rstd, TensorView d_normed,
                     TensorView d_gain);
  // [T, C + r]: joins latent and shared key, or their gradients, in scratch.
  TensorView join(Stream& stream, const Kept& parts);

  AttentionSpec spec_;
  LatentWeights weights_;
  LatentSaved saved_;
  LatentScratch scratch_;
  KeyValueCache cache_;
};

}  // namespace mw
