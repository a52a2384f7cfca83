// QK-clip (train.qk_clip; MuonClip in Kimi K2, arXiv 2507.20534, section 2.1): where the largest attention logit S of a
// head in a step exceeds the limit t, the update also multiplies the head's query and key weights by sqrt(t / S) each,
// so that the same tokens would have logits of at most t. Moments stay as they are. Where several query heads read one
// key head, S is the largest of all of them, and they are clipped together, as in Megatron-LM: a key head has one
// weight, and each of its heads keeps its share of the factor. With latent attention, the rotary part of a query takes
// the whole factor t / S, because its key is shared by all heads and stays.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/step.h"

namespace mw {

// Rows of a tensor of the whole model, and what they are multiplied by.
struct RowFactor {
  int64_t begin = 0, count = 0;
  double factor = 1;
  bool operator==(const RowFactor&) const = default;
};
// What is clipped of a layer's attention tensor ("wq", "bk", ...), where the largest logits of its query heads are
// these. Pure.
std::vector<RowFactor> clipped_rows(const AttentionSpec& attention, std::string_view tensor,
                                    std::span<const double> logits_H, double limit);

// To be called before the first micro-batch of a step.
void reset_largest_logits(Engine& engine);
// StepStats::largest_logits, after the last micro-batch. Collective over the world.
std::vector<std::vector<double>> gather_largest_logits(Engine& engine);

// Clips what this rank owns of a parameter, which the optimizer has updated; not where train.lr_scales is 0.
void clip_queries_and_keys(Engine& engine, const StepStats& stats, Parameter& p);

}  // namespace mw
