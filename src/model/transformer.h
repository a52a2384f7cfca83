// The whole decoder on one rank: embedding, layers, loss head; explicit forward and backward over tensors of the byte
// table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/attention_block.h"
#include "model/param_store.h"
#include "moe/moe_layer.h"
#include "spec/plan.h"

namespace mw {

// One micro-batch of this rank. ids, labels: i32 [T], sequence-major; labels are already shifted, -100 is ignored. They
// belong to the caller, in memory that the stream's device reaches, and must live until its backward is done.
struct Batch {
  const int32_t* ids = nullptr;
  const int32_t* labels = nullptr;  // may be null for logits only
  int64_t sequences = 0, seq_len = 0;
  int64_t tokens() const { return sequences * seq_len; }
};

// Memory of the table of bytes for the tokens of a step: i32 [micro-batch, T].
struct StepTokens {
  TensorView ids, labels;
};

// Auxiliary terms of one micro-batch, from statistics summed over the data-parallel world.
struct AuxLosses {
  double aux = 0;       // unweighted: 1 at balance with scope "layer", K with scope "model"
  double z = 0;         // unweighted mean over layers and tokens
  double weighted = 0;  // coefficients applied: what is added to the loss
};

// Hears how far backward has come: the gradients of this layer's feed-forward and of all rows that follow it in the
// table of parameters are complete for what is enqueued from here on.
using FeedForwardDone = std::function<void(int64_t layer)>;

class Transformer {
 public:
  // `params` and `comms` must outlive it. Takes memory for plan.activation_rows. Errors: memory.
  Transformer(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream,
              const Reserve& reserve = reserve_host);

  // Layers on one micro-batch. taps: one per MoE layer, or empty. Collective over EP.
  void forward(const Batch& batch, bool training, const std::vector<RoutingTap>& taps = {});
  // Sum of cross-entropy over valid labels of this rank. With `seed` > 0 also starts backward: every gradient gets
  // d(seed * sum).
  double loss(const Batch& batch, float seed);
  // Logits of token rows [begin, begin + count) of the last forward, [count, V], on the host.
  std::vector<float> logits(int64_t begin, int64_t count);

  // Load statistics of the last forward, as one vector to be summed over ranks: per MoE layer counts[E], prob_sums[E],
  // z_sum, dropped.
  std::vector<double> statistics() const;
  // Auxiliary losses of one micro-batch of `tokens` tokens in all, and their gradients for backward, scaled by `seed`
  // (1 / M).
  AuxLosses set_auxiliary(const std::vector<double>& summed, int64_t tokens, double seed);
  // Layers in reverse, after loss(seed > 0) and set_auxiliary. Adds to the gradients, or overwrites those of the routed
  // experts. Collective over EP.
  void backward(const Batch& batch, Store expert_gradients = Store::accumulate, const FeedForwardDone& done = {});

  const Plan& plan() const { return plan_; }
  Stream& stream() { return stream_; }
  TensorStore& activations() { return store_; }
  const StepTokens& step_tokens() const { return step_tokens_; }
  int64_t moe_layers() const { return static_cast<int64_t>(moe_index_.size()); }
  // Layer number of each MoE layer.
  const std::vector<int64_t>& moe_index() const { return moe_index_; }

 private:
  struct Layer {
    TensorView x, attn_rstd, x_mid, ffn_rstd, h;
    TensorView attn_gain, d_attn_gain, ffn_gain, d_ffn_gain;
    std::unique_ptr<AttentionBlock> attention;
    FeedForwardWeights dense;
    std::unique_ptr<MoeLayer> moe;
    AuxGradient aux;
  };
  void build_layer(int64_t index, MeshComms& comms);
  void forward_layer(Layer& layer, const LayerSpec& spec, TensorView out_TD, const Batch& batch, bool training,
                     const RoutingTap* tap);
  void backward_feed_forward(Layer& layer, const LayerSpec& spec, int64_t tokens, TensorView d_x_TD,
                             Store expert_gradients);
  void backward_attention(Layer& layer, const Batch& batch, TensorView d_x_TD);
  TensorView rows(TensorView view, int64_t tokens) const;
  const Weight& head_weight() const;

  Plan plan_;
  ParamStore& params_;
  Stream& stream_;
  TensorStore store_;
  std::vector<Layer> layers_;
  std::vector<int64_t> moe_index_;
  StepTokens step_tokens_;
  TensorView final_x_, final_rstd_, normed_, branch_, d_x_, d_branch_, dense_a_, logits_, d_logits_, token_loss_;
};

}  // namespace mw
