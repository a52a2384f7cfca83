// How a pipeline cuts the layers of a model: stages of consecutive layers, spread over the ranks by a schedule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/model_spec.h"
#include "config/param_table.h"
#include "layout/schedule/schedule.h"

namespace mw {

// First layer of each stage, and the number of layers at the end. `wanted`: layers per stage as a run file lists them,
// "8,8,7"; empty, or "measured": the cut whose slowest stage has the fewest FLOPs, the vocabulary's counted on the last
// stage; of those an even one, with more layers in front. Where ranks hold several stages, from there on boundaries
// move by one or two layers, one or two at a time, as long as the slowest rank gets faster, or, where that is equal,
// the slowest stage, or the sum of squares of the ranks' FLOPs. Errors: config, when there are fewer layers than stages
// or `wanted` does not add up.
std::vector<int64_t> split_layers(const ModelSpec& model, const PipelineShape& shape, int64_t seq_len,
                                  const std::string& wanted);

// Layers of each stage in the cut whose slowest stage takes the least time, where every stage has a rank of its own
// that takes seconds[s] for each FLOP and has memory for most[s] layers. Requires room for all layers.
std::vector<int64_t> layers_by_speed(const ModelSpec& model, int64_t seq_len, std::span<const double> seconds,
                                     std::span<const int64_t> most);

// A stage that a rank holds.
struct StagePlan {
  int stage = 0;
  int64_t first_layer = 0, end_layer = 0;
  bool embeds = false;    // the model's first
  bool has_head = false;  // its last
  // The neighbours are on other ranks: activations come and go as messages, and gradients the other way.
  bool receives = false, sends = false;
  int64_t slots = 1;      // micro-batches whose activations live at a time, at most
  int64_t gradients = 1;  // gradients of its output that wait for their backward pass at a time, at most
  bool has_layer(int64_t layer) const { return layer >= first_layer && layer < end_layer; }
  bool operator==(const StagePlan&) const = default;
};

// The stages of one pipeline rank, in the order of the model. A micro-batch takes a slot of a stage when its input
// arrives - as a message, or from the stage before on the same rank - and leaves it when its backward pass is over.
std::vector<StagePlan> plan_stages(const Schedule& schedule, int rank, const std::vector<int64_t>& first_layers);

// FLOPs of a token in forward, with those of the vocabulary on the last stage.
double flops_of_stage(const ModelSpec& model, int64_t seq_len, const StagePlan& stage);

std::string describe(const std::vector<StagePlan>& stages);  // "layers 0-7 and 16-23"

// Whether one of the stages computes with this parameter. Tied embeddings are on the first and on the last.
bool holds(const std::vector<StagePlan>& stages, const ParamRow& row, bool tied_embeddings);

}  // namespace mw
