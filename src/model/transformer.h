// The decoder of one rank: the pipeline stages that it holds, each with its micro-batches in flight; explicit forward
// and backward over tensors of the byte table.
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

// Buffers of the byte table for the tokens of a step: i32 [micro-batch, T].
struct StepTokens {
  TensorView ids, labels;
  TensorView document_starts;  // with data.document_mask only
};

// Callback during backward: the gradients of this layer's feed-forward, and of all later rows of the parameter table,
// are complete for work enqueued from here on.
using FeedForwardDone = std::function<void(int64_t layer)>;

// Rows that the experts of this rank computed.
struct ExpertRows {
  int64_t all = 0, of_replicas = 0;
};

class Transformer {
 public:
  // `params` and `comms` must outlive this object. Allocates plan.activation_rows. Errors: memory.
  Transformer(const Plan& plan, ParamStore& params, MeshComms& comms, Stream& stream,
              const Reserve& reserve = reserve_host);
  ~Transformer();

  // Buffers of one stage and one micro-batch. They are views [T, D] of this rank's shard (`tokens`: of the whole
  // micro-batch), owned by the model; messages between stages read and fill them directly:
  //   input            read by forward of all stages but the first
  //   output           written by forward of all stages but the last; the next stage's input where this rank holds it
  //   output_gradient  read and overwritten by backward of all stages but the last
  //   input_gradient   written by backward of all stages but the first
  // A micro-batch occupies a slot of a stage from the first call of input() for it, until backward (where backward is
  // split: backward_weights) or release().
  TensorView input(int stage, int64_t micro_batch, int64_t tokens);
  TensorView output(int stage, int64_t micro_batch, int64_t tokens);
  TensorView output_gradient(int stage, int64_t micro_batch, int64_t tokens);
  TensorView input_gradient(int stage, int64_t micro_batch, int64_t tokens);

  // Forward through the stage's layers. taps: one per MoE layer of the model, or empty. Collective over EP and TP.
  void forward(int stage, int64_t micro_batch, const Batch& batch, bool training,
               const std::vector<RoutingTap>& taps = {});
  // After forward of the last stage: writes the cross-entropy of each token of this rank's shard (0 without a valid
  // label) into `losses` by the next wait of the stream. With `seed` > 0 also starts backward: gradients of seed * (sum
  // over all shards); store: as in backward. Collective over TP.
  void loss(int64_t micro_batch, const Batch& batch, float seed, std::vector<float>& losses,
            Store store = Store::accumulate);
  // Backward through the stage's layers, after set_auxiliary and, on the last stage, after loss(seed > 0). Gradients of
  // matrices are overwritten or accumulated as `gradients` says, others are accumulated. Collective over EP and TP.
  // When the schedule splits backward, the gradients of the weight part (layout/recompute.h) are not computed yet,
  // `done` is not called, and the micro-batch keeps its slot until backward_weights, which may be called at any later
  // time. backward_weights is collective over TP.
  void backward(int stage, int64_t micro_batch, const Batch& batch, GradientStore gradients = {},
                const FeedForwardDone& done = {});
  void backward_weights(int stage, int64_t micro_batch, const Batch& batch, GradientStore gradients = {},
                        const FeedForwardDone& done = {});
  // Frees the slot of a micro-batch that has no backward pass.
  void release(int stage, int64_t micro_batch);
  int64_t live(int stage) const;  // micro-batches in flight

  // Load statistics of the stage's last forward of this micro-batch, as a vector (model/auxiliary.h).
  std::vector<double> statistics(int stage, int64_t micro_batch);
  // By MoE layer of the stage, of the last forward of this micro-batch.
  std::vector<ExpertRows> expert_rows(int stage, int64_t micro_batch);
  // Sets the gradients of the auxiliary losses for the stage's layers, from its summed statistics; mean_load as in
  // Auxiliary::gradient.
  void set_auxiliary(int stage, int64_t micro_batch, std::span<const double> summed, std::span<const double> mean_load,
                     int64_t tokens, double seed);
  const Auxiliary& auxiliary() const { return auxiliary_; }
  // Layer numbers of a stage's MoE layers; may be empty.
  const std::vector<int64_t>& moe_layers_of(int stage) const;

  // The whole model at once, if this rank holds all of it in one stage; micro-batch 0.
  void forward(const Batch& batch, bool training, const std::vector<RoutingTap>& taps = {});
  std::vector<double> statistics() { return statistics(0, 0); }
  AuxLosses set_auxiliary(const std::vector<double>& summed, int64_t tokens, double seed);
  void backward(const Batch& batch, GradientStore gradients = {}, const FeedForwardDone& done = {});

  // Logits of tokens [begin, begin + count) of the micro-batch in the last stage's last forward, [count, V], on the
  // host. Collective over TP.
  std::vector<float> logits(int64_t begin, int64_t count);

  // Computes with the experts of this rank in `placements` from now on; no micro-batch may be in flight. Errors:
  // config, as place_experts (layout/plan.h).
  void place_experts(SharedPlacements placements);
  // With train.qk_clip, where the layer's forwards in training raise the largest logits, f32 [H] for each slot of
  // micro-batches; none in layers of other ranks.
  std::vector<TensorView> largest_logits(int64_t layer) const;
  // Steps have so many micro-batches from now on (layout/plan.h).
  void plan_steps(int64_t micro_batches) { mw::plan_steps(plan_, micro_batches); }

  const Plan& plan() const { return plan_; }
  Stream& stream() { return stream_; }
  TensorStore& activations() { return store_; }
  // This rank's shard of a micro-batch.
  Block own_tokens(const Batch& batch) const { return shards_.own(batch.tokens()); }
  const StepTokens& step_tokens() const { return step_tokens_; }
  // Memory (u8) that only forward and backward use: the largest of expert outputs, activated hidden states and logits,
  // as committed at start. Others may overwrite it when no micro-batch is in flight.
  TensorView scratch() const { return scratch_; }
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
    TensorView output, input_gradient;         // buffers of messages
    std::vector<TensorView> output_gradients;  // used by micro-batches in turn
  };
  void fill_rope_table();
  void choose_scratch();
  Stage make_stage(const StagePlan& plan, MeshComms& comms);
  const Stage& stage_of(int stage) const;
  Stage& stage_of(int stage);
  Slot& slot_of(int stage, int64_t micro_batch);
  TensorView rows(TensorView view, int64_t tokens) const;
  int whole_stage() const;

  Plan plan_;
  ParamStore& params_;
  MeshComms& comms_;
  Stream& stream_;
  TensorStore store_;
  std::unique_ptr<WeightCache> weight_cache_;  // null: this rank gathers no weights
  TokenShards shards_;
  Auxiliary auxiliary_;
  bool splits_;  // whether backward is split in two
  std::vector<Stage> stages_;
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<LossHead> head_;
  std::vector<int64_t> moe_index_;
  StepTokens step_tokens_;
  TensorView d_x_, last_output_, scratch_;
  int64_t last_tokens_ = 0;  // of its micro-batch
};

}  // namespace mw
