// One optimizer step: gradients by the plan's schedule, then the update.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace mw {

// The tokens of one micro-batch, on the host. labels are shifted: labels[t] is the token after ids[t], or -100.
struct MicroBatch {
  std::vector<int32_t> ids, labels;
  int64_t sequences = 0, seq_len = 0;
  std::vector<int32_t> document_starts = {};  // as in Batch; with data.document_mask only
};
// Copies the micro-batches of a step to memory that the engine's operators read.
std::vector<Batch> stage(Engine& engine, std::span<const MicroBatch> batches);

struct StepStats {
  double loss = 0;      // mean cross-entropy per valid label of the whole step, nats
  double aux_loss = 0;  // unweighted, mean over micro-batches
  double z_loss = 0;
  double total_loss = 0;     // loss plus weighted auxiliary terms
  double grad_norm = 0;      // before clipping
  int64_t valid_labels = 0;  // of the whole step
  int64_t dropped_rows = 0;
  std::vector<std::vector<double>> load;  // [MoE layer][expert] choices of the whole step
  // [MoE layer] rows that the experts of this rank computed; none in layers of other stages.
  std::vector<ExpertRows> rows;
  // With train.qk_clip, [layer][query head] of the whole model: the largest attention logit of the step, 0 where all
  // are negative; else empty.
  std::vector<std::vector<double>> largest_logits;
  double largest_logit() const;  // of all heads
  // The most loaded expert, relative to the mean of its layer.
  struct Fullest {
    size_t layer = 0, expert = 0;  // indices into `load`
    double ratio = 0;              // to the mean
  };
  Fullest fullest() const;
  double imbalance() const { return fullest().ratio; }
};

using TapProvider = std::function<std::vector<RoutingTap>(int64_t micro_batch)>;
// Taps that put the choices of moe.forced_load in a step in place of the router's; empty without it. They own the
// choices. `plan` must outlive them.
TapProvider forced_taps(const Plan& plan, int64_t step);

// Computes the gradients of a step from zero: the sum over micro-batches and replicas, in the elements that this rank
// owns. batches: this rank's micro-batches, train.micro_batches or, during a batch-size ramp, fewer. Collective over
// the world. Errors: data when no label of the step is valid.
StepStats accumulate_gradients(Engine& engine, std::span<const Batch> batches, const TapProvider& taps = {});

// A forward pass without gradients through all stages. Returns the cross-entropy of each token of this rank's shard (0
// without a valid label) if it holds the last stage, whose logits can then be read, and there are labels; otherwise
// nothing. Collective over the pipeline and EP.
std::vector<float> evaluate(Engine& engine, const Batch& batch);

struct UpdateRule {
  double lr = 0;
  int64_t step = 1;  // of updates; counts from 1
};
// Clips gradients, applies AdamW or Muon to the elements that this rank owns of every trained parameter, clips queries
// and keys (engine/qk_clip.h), moves the selection bias and refreshes packed weights; with ZeRO gathers the weights
// from their owners. Afterwards gradients that accumulate are zero, or will be for work enqueued from then on: the next
// accumulate_gradients does not zero them again. Collective over the world.
void apply_update(Engine& engine, const StepStats& stats, const UpdateRule& rule);

// Returns "" when loss and gradient norm are finite; otherwise says which is not, with the first tensor on this rank
// that contains a non-finite value.
std::string find_non_finite(Engine& engine, const StepStats& stats);

}  // namespace mw
