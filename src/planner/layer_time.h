// What one micro-batch costs in one layer of a rank, from the tables of a platform: each operator takes the longer of
// its FLOP and its bytes, and its latency; exchanges take what compute beside them does not hide.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/exchange_time.h"
#include "planner/layout.h"
#include "planner/load.h"
#include "planner/memory.h"
#include "planner/transfers.h"
#include "planner/unequal_ranks.h"

namespace mw {

// Seconds. Backward in the two parts that zero-bubble schedules split it into: in the second are the weight gradients
// of a layer's first products, where it keeps their operands.
struct LayerTime {
  double forward = 0, backward_input = 0, backward_weight = 0;  // compute
  double forward_exchange = 0, backward_exchange = 0;           // that is waited for
  bool adds_squares = false;  // products do, of the gradients of its experts, where they can (squares_when_stored)
};

// Of one rank's shape, with the rows of the fullest rank, whom the others wait for.
struct LayerTimes {
  std::vector<LayerTime> kinds;   // by kind of layer
  std::vector<LayerTime> cached;  // the same where all weights that it gathers are in their slots already
  LayerTime embedding, head;
};

class LayerTimeModel {
 public:
  // For `ranks` in all.
  LayerTimeModel(const LayerKinds& kinds, const RunSpec& run, const PlatformProfile& profile, const ExpertLoad& load,
                 int64_t ranks);
  // Not for several threads at once. The result lives as long as the model.
  // pace: of the ranks of a stage.
  const LayerTimes& of(const Layout& layout, const Mesh& mesh, const StagePace& pace = {});
  LoadModel& load() { return load_; }

 private:
  struct Shape;
  LayerTime attend(const AttentionSpec& a, double scores, double width) const;
  LayerTime attention(const LayerSpec& layer, const Shape& shape) const;
  LayerTime dense(const LayerSpec& layer, const Shape& shape) const;
  LayerTime layer_time(const LayerSpec& layer, const Shape& shape, const StagePace& pace);
  ExchangeShape exchange_of(const MoeSpec& moe, const Shape& shape);
  // before: the attention that precedes, during which weights are gathered.
  LayerTime experts(const LayerSpec& layer, const Shape& shape, const LayerTime& before);
  // Of weights that are gathered and gradients that are summed for an expert-parallel group, beside products that take
  // so long: what is waited for, in `exchange`, and what copies take, in the rest.
  LayerTime gathered(const LayerSpec& layer, const Shape& shape, const LayerTime& products,
                     const LayerTime& before) const;
  LayerTime head(const Shape& shape) const;
  LayerTime embedding(const Shape& shape) const;

  double bound(double computing, double operand_bytes, double sum_bytes = 0) const;
  // One operator.
  double product(double rows, double n, double k) const;
  double weight_product(double rows, double n, double k) const;
  double expert_product(double rows, double experts, double n, double k) const;
  double expert_weight_product(double rows, double experts, double n, double k) const;
  double traffic(double bytes) const;

  const LayerKinds& kinds_;
  const RunSpec& run_;
  Platform platform_;
  const PlatformProfile& profile_;
  Transfers transfers_;
  LoadModel load_;
  OperatorRates rates_;
  double element_bytes_, gradient_bytes_;  // gradient_bytes_: of an element of experts' gradients
  std::map<std::tuple<int, int, int64_t, int64_t, Recompute, StagePace>, LayerTimes> known_;
};

}  // namespace mw
