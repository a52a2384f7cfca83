// One layer for one live micro-batch: attention and feed-forward with their norms, over tensors of the byte table.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/world.h"
#include "model/attention.h"
#include "model/param_store.h"
#include "model/token_shards.h"
#include "moe/moe_layer.h"
#include "spec/plan.h"
#include "spec/recompute.h"

namespace mw {

// One micro-batch of this rank. ids, labels: i32 [T], sequence-major; labels are already shifted, -100 is ignored. They
// belong to the caller, in memory that the stream's device reaches, and must live until its backward is done.
struct Batch {
  const int32_t* ids = nullptr;
  const int32_t* labels = nullptr;  // may be null for logits only
  int64_t sequences = 0, seq_len = 0;
  // i32 [T], with data.document_mask: the position in its sequence of the first token of each token's document. As ids.
  const int32_t* document_starts = nullptr;
  int64_t valid_labels = 0;  // those that are not ignored
  int64_t tokens() const { return sequences * seq_len; }
};

// Token ids or labels as operators read them: through views, which are not const.
TensorView token_view(const int32_t* tokens, int64_t count);

// Scratch that all layers of a rank share. Tokens of the whole micro-batch, with tensor parallelism only: what a block
// reads, the gradient of what it writes, and its share of the result.
struct LayerScratch {
  TensorView normed, branch, d_branch, dense_a;
  TensorView whole_in, whole_d_out, whole_out;
};

class DecoderLayer {
 public:
  // Slot: which of the live micro-batches of its stage. All must outlive it.
  DecoderLayer(const Plan& plan, int64_t index, int64_t slot, ParamStore& params, TensorStore& store, MeshComms& comms,
               const TokenShards& shards);

  // Of a batch of B tokens this rank has the rows T of its shard; all operands are shards. Collective over EP and TP.

  // [T, D]: what the layer reads, kept for backward.
  TensorView input(int64_t batch_tokens) const;
  // out [T, D] (overwritten) from the input.
  void forward(Stream& stream, const Batch& batch, TensorView out_TD, bool training, const RoutingTap* tap);
  // Before backward_feed_forward: what both parts of backward read of attention, where forward did not keep it.
  void recompute_attention(Stream& stream, const Batch& batch);
  // d_x [T, D]: the gradient of the output, then of what the feed-forward read. Adds to the weight gradients, or
  // overwrites those of the routed experts.
  void backward_feed_forward(Stream& stream, int64_t batch_tokens, TensorView d_x_TD, Store expert_gradients);
  // d_input [T, D] (overwritten, may be d_x) from the d_x that backward_feed_forward left; adds to the weight
  // gradients.
  void backward_attention(Stream& stream, const Batch& batch, TensorView d_x_TD, TensorView d_input_TD);

  // What these two leave to the weight part of a split schedule (spec/recompute.h), at any time after them. Collective
  // over TP.
  void backward_feed_forward_weights(Stream& stream, int64_t batch_tokens, Store expert_gradients);
  void backward_attention_weights(Stream& stream, const Batch& batch);

  // Null for a dense layer.
  MoeLayer* moe() { return moe_.get(); }
  const MoeLayer* moe() const { return moe_.get(); }
  // Of the auxiliary terms; to be set between forward and backward.
  AuxGradient aux;

 private:
  TensorView rows(TensorView view, int64_t tokens) const;
  TensorView hidden(int64_t batch_tokens) const;
  // Leaves x_mid, and the normed input of the feed-forward in scratch.
  void forward_attention(Stream& stream, const Batch& batch);
  void attention_weights(Stream& stream, const Batch& batch);
  // The normed input of a block, once more.
  TensorView normed_again(Stream& stream, TensorView x, TensorView gain, TensorView rstd, int64_t batch_tokens);
  // The MoE block where every rank routes all tokens of the micro-batch; its gradient.
  void ted_forward(Stream& stream, const Batch& batch, TensorView normed_TD, TensorView out_TD, bool training,
                   const RoutingTap* tap);
  void ted_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD, TensorView d_x_TD,
                    Store expert_gradients);
  // Dense feed-forward of normed rows; its gradient.
  void dense_forward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView out_TD);
  void dense_backward(Stream& stream, int64_t batch_tokens, TensorView normed_TD, TensorView d_out_TD,
                      TensorView d_x_TD);

  LayerSpec spec_;  // as this rank computes it
  const TokenShards& shards_;
  int64_t width_;
  float norm_eps_;
  bool recompute_attention_ = false, recompute_hidden_ = false, ted_ = false;
  WeightPart weight_part_;
  LayerScratch scratch_;
  TensorView x_, attn_rstd_, x_mid_, ffn_rstd_, h_;
  TensorView attn_gain_, d_attn_gain_, ffn_gain_, d_ffn_gain_;
  std::unique_ptr<Attention> attention_;
  FeedForwardWeights dense_;
  std::unique_ptr<MoeLayer> moe_;
};

}  // namespace mw
