// One decoder layer for one micro-batch in flight: attention and feed-forward with their norms, over tensors of the
// byte table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/world.h"
#include "layout/plan.h"
#include "layout/recompute.h"
#include "model/attention.h"
#include "model/param_store.h"
#include "model/token_shards.h"
#include "moe/moe_layer.h"
#include "moe/weight_cache.h"

namespace mw {

// One micro-batch of this rank. ids, labels: i32 [T], sequence-major; labels are already shifted, -100 is ignored. The
// caller owns them; the stream's device must be able to read them until the micro-batch's backward is done.
struct Batch {
  const int32_t* ids = nullptr;
  const int32_t* labels = nullptr;  // may be null for logits only
  int64_t sequences = 0, seq_len = 0;
  // With data.document_mask, i32 [T]: for each token the position, in its sequence, of its document's first token.
  // Owned as ids.
  const int32_t* document_starts = nullptr;
  int64_t valid_labels = 0;  // number of labels that are not ignored
  // Of generation, in a run with sample.tokens: these are the tokens at positions past, past + 1, ... of each sequence,
  // whose earlier tokens went through the same forward passes before.
  std::optional<int64_t> past = {};
  int64_t tokens() const { return sequences * seq_len; }
};

// Wraps token ids or labels in a TensorView (which has no const form) for operators.
TensorView token_view(const int32_t* tokens, int64_t count);

// Scratch shared by all layers of a rank. whole_*: with tensor parallelism only, for all tokens of the micro-batch: a
// block's input, the gradient of its output, and this rank's partial result.
struct LayerScratch {
  TensorView normed, branch, d_branch, dense_a;
  TensorView whole_in, whole_d_out, whole_out;
};

class DecoderLayer {
 public:
  // slot: index among the stage's micro-batches in flight. weight_cache: the rank's, null if it gathers no weights. It
  // and all references must outlive this object.
  DecoderLayer(const Plan& plan, int64_t index, int64_t slot, ParamStore& params, TensorStore& store, MeshComms& comms,
               const TokenShards& shards, WeightCache* weight_cache);

  // All operands are this rank's shard: T of the micro-batch's tokens. Collective over EP and TP.

  // [T, D]: the layer's input, saved for backward.
  TensorView input(int64_t batch_tokens) const;
  // out [T, D] (overwritten) from input().
  void forward(Stream& stream, const Batch& batch, TensorView out_TD, bool training, const RoutingTap* tap);
  // To be called before backward_feed_forward: recomputes what backward needs of attention, where forward did not save
  // it.
  void recompute_attention(Stream& stream, const Batch& batch);
  // d_x [T, D], in place: the gradient of the output becomes the gradient of the feed-forward's input. Gradients
  // of matrices are stored as `gradients` says, here and below; others are accumulated.
  void backward_feed_forward(Stream& stream, int64_t batch_tokens, TensorView d_x_TD, GradientStore gradients);
  // d_input [T, D] (overwritten, may be d_x) from the d_x that backward_feed_forward returned.
  void backward_attention(Stream& stream, const Batch& batch, TensorView d_x_TD, TensorView d_input_TD, Store store);

  // The weight part of a split backward (zero-bubble schedules, layout/recompute.h), at any time after the two
  // functions above. Collective over TP.
  void backward_feed_forward_weights(Stream& stream, int64_t batch_tokens, GradientStore gradients);
  void backward_attention_weights(Stream& stream, const Batch& batch, Store store);

  // Makes the MoE block again, for the plan's placements; a dense layer stays as it is. Arguments as for the
  // constructor.
  void place_experts(const Plan& plan, int64_t index, int64_t slot, ParamStore& params, TensorStore& store,
                     MeshComms& comms, WeightCache* weight_cache);

  // Null for a dense layer.
  MoeLayer* moe() { return moe_.get(); }
  const MoeLayer* moe() const { return moe_.get(); }
  // With train.qk_clip, f32 [H]: raised by every forward in training; else empty.
  TensorView largest_logits() const { return largest_logits_; }
  // The gradient of the auxiliary losses; must be set between forward and backward.
  AuxGradient aux;

 private:
  TensorView rows(TensorView view, int64_t tokens) const;
  TensorView hidden(int64_t batch_tokens) const;
  // Computes x_mid, and leaves the normed input of the feed-forward in scratch. largest_H: of the logits, as in
  // Sequences.
  void forward_attention(Stream& stream, const Batch& batch, TensorView largest_H);
  void attention_weights(Stream& stream, const Batch& batch, Store store);
  // The normed input of a block, in its place; computed again unless it was kept.
  TensorView normed_again(Stream& stream, TensorView x, TensorView gain, TensorView rstd, TensorView place,
                          int64_t batch_tokens);
  // The MoE block, and its gradient, with TED (layout/mesh.h): every TP rank routes all tokens of the micro-batch.
  void ted_forward(Stream& stream, const Batch& batch, TensorView normed_TD, TensorView out_TD, bool training,
                   const RoutingTap* tap);
  void ted_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD, TensorView d_x_TD,
                    GradientStore gradients);
  // The dense feed-forward of normed rows, and its gradient.
  void dense_forward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView out_TD);
  void dense_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD,
                      TensorView d_x_TD, Store store);

  LayerSpec spec_;  // as this rank computes it
  const TokenShards& shards_;
  int64_t width_;
  float norm_eps_;
  bool keeps_norms_ = false, recompute_attention_ = false, recompute_hidden_ = false, ted_ = false;
  WeightPart weight_part_;
  LayerScratch scratch_;
  TensorView x_, attn_rstd_, x_mid_, ffn_rstd_, h_, largest_logits_;
  TensorView attn_in_, ffn_in_;  // normed inputs of the blocks; scratch, unless they are kept
  TensorView attn_gain_, d_attn_gain_, ffn_gain_, d_ffn_gain_;
  std::unique_ptr<Attention> attention_;
  FeedForwardWeights dense_;
  std::unique_ptr<MoeLayer> moe_;
};

}  // namespace mw
