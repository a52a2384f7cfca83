// The decoder of one rank: the stages of a model that it holds, each with its live micro-batches; explicit forward and
// backward over tensors of the byte table.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/auxiliary.h"
#include "model/decoder_layer.h"
#include "model/loss_head.h"
#include "model/token_embedding.h"

namespace mw {

// Memory of the table of bytes for the tokens of a step: i32 [micro-batch, T].
struct StepTokens {
  TensorView ids, labels;
  TensorView document_starts;  // with data.document_mask only
};

// Hears how far backward has come: the gradients of this layer's feed-forward and of all rows that follow it in the
// table of parameters are complete for what is enqueued from here on.
using FeedForwardDone = std::function<void(int64_t layer)>;

class Transformer {
 public:
  // `params` and `comms` must outlive it. Takes memory for plan.activation_rows. Errors: memory.
  Transformer(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream,
              const Reserve& reserve = reserve_host);
  ~Transformer();

  // One stage of the plan and one micro-batch. What a stage reads and writes stands in views of [T, D], of the rank's
  // shard of `tokens` in all, that belong to the model, so that messages can fill and fetch them:
  //   input            read by forward of all stages but the first
  //   output           written by forward of all stages but the last; the next stage's input where this rank holds it
  //   output_gradient  read and overwritten by backward of all stages but the last
  //   input_gradient   written by backward of all stages but the first
  // A micro-batch takes a slot of a stage when its input is first asked for, and leaves it in backward,
  // backward_weights where backward is split, or release.
  TensorView input(int stage, int64_t micro_batch, int64_t tokens);
  TensorView output(int stage, int64_t micro_batch, int64_t tokens);
  TensorView output_gradient(int stage, int64_t micro_batch, int64_t tokens);
  TensorView input_gradient(int stage, int64_t micro_batch, int64_t tokens);

  // The stage's layers. taps: one per MoE layer of the model, or empty. Collective over EP and TP.
  void forward(int stage, int64_t micro_batch, const Batch& batch, bool training,
               const std::vector<RoutingTap>& taps = {});
  // After forward of the last stage: cross-entropy of the tokens of this rank's shard, 0 without a valid label, into
  // `losses` by the next wait of the stream. With `seed` > 0 also starts backward: every gradient gets d(seed * sum of
  // all shards). Collective over TP.
  void loss(int64_t micro_batch, const Batch& batch, float seed, std::vector<float>& losses);
  // The stage's layers in reverse, after set_auxiliary, on the last stage after loss(seed > 0). Adds to the gradients,
  // or overwrites those of the routed experts. Collective over EP and TP. Where the schedule splits it, the gradients
  // of the weight part (spec/recompute.h) are missing, `done` is not called, and the micro-batch keeps its slot until
  // backward_weights, which may come at any later time. Collective over TP.
  void backward(int stage, int64_t micro_batch, const Batch& batch, Store expert_gradients = Store::accumulate,
                const FeedForwardDone& done = {});
  void backward_weights(int stage, int64_t micro_batch, const Batch& batch, Store expert_gradients = Store::accumulate,
                        const FeedForwardDone& done = {});
  // Ends a micro-batch that has no backward pass.
  void release(int stage, int64_t micro_batch);
  int64_t live(int stage) const;  // micro-batches that hold a slot

  // Load statistics of the stage's last forward of this micro-batch, as one vector to be summed over ranks: per MoE
  // layer counts[E], prob_sums[E], z_sum, dropped, sequence_sum.
  std::vector<double> statistics(int stage, int64_t micro_batch);
  // The gradients of the auxiliary terms for the stage's layers, from its summed statistics; mean_load as
  // Auxiliary::gradient wants it.
  void set_auxiliary(int stage, int64_t micro_batch, std::span<const double> summed, std::span<const double> mean_load,
                     int64_t tokens, double seed);
  const Auxiliary& auxiliary() const { return auxiliary_; }
  // Numbers of a stage's MoE layers, of which there may be none.
  const std::vector<int64_t>& moe_layers_of(int stage) const;

  // The whole model at once, where this rank holds all of it in one stage; micro-batch 0.
  void forward(const Batch& batch, bool training, const std::vector<RoutingTap>& taps = {});
  double loss(const Batch& batch, float seed);  // the sum, for which it waits
  std::vector<double> statistics() { return statistics(0, 0); }
  AuxLosses set_auxiliary(const std::vector<double>& summed, int64_t tokens, double seed);
  void backward(const Batch& batch, Store expert_gradients = Store::accumulate, const FeedForwardDone& done = {});

  // Logits of tokens [begin, begin + count) of the micro-batch in the last stage's last forward, [count, V], on the
  // host. Collective over TP.
  std::vector<float> logits(int64_t begin, int64_t count);

  const Plan& plan() const { return plan_; }
  Stream& stream() { return stream_; }
  TensorStore& activations() { return store_; }
  // This rank's shard of a micro-batch.
  Block own_tokens(const Batch& batch) const { return shards_.own(batch.tokens()); }
  const StepTokens& step_tokens() const { return step_tokens_; }
  // Layer number of each MoE layer of the model.
  const std::vector<int64_t>& moe_index() const { return moe_index_; }
  int64_t moe_layers() const { return static_cast<int64_t>(moe_index_.size()); }

 private:
  struct Slot {
    int64_t micro_batch = -1;  // -1: free
    std::vector<DecoderLayer> layers;
    TensorView final_x;  // of the last stage
  };
  struct Stage {
    StagePlan plan;
    std::vector<Slot> slots;
    std::vector<int64_t> moe_layers;
    TensorView output, input_gradient;         // of messages
    std::vector<TensorView> output_gradients;  // micro-batches take them in turn
  };
  void fill_rope_table();
  Stage make_stage(const StagePlan& plan, MeshComms& comms);
  const Stage& stage_of(int stage) const;
  Stage& stage_of(int stage);
  Slot& slot_of(int stage, int64_t micro_batch);
  TensorView rows(TensorView view, int64_t tokens) const;
  int whole_stage() const;

  Plan plan_;
  ParamStore& params_;
  Stream& stream_;
  TensorStore store_;
  TokenShards shards_;
  Auxiliary auxiliary_;
  bool splits_;  // backward, in two
  std::vector<Stage> stages_;
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<LossHead> head_;
  std::vector<int64_t> moe_index_;
  StepTokens step_tokens_;
  TensorView d_x_, last_output_;
  int64_t last_tokens_ = 0;  // of its micro-batch
};

}  // namespace mw
