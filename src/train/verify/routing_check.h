// The routing of a step as `verify` records it, and the comparison of two such records.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/token_layout.h"

namespace mw {

// The routing of one step: [micro-batch][MoE layer], `tokens` tokens each. After all layers a second set follows: the
// experts with the best scores, which is empty where the loss does not count those, and never has weights.
struct Routing {
  int64_t tokens = 0;
  std::vector<std::vector<std::vector<int32_t>>> ids;    // [T, K]
  std::vector<std::vector<std::vector<float>>> gaps;     // [T]
  std::vector<std::vector<std::vector<float>>> weights;  // [T, K], empty where nothing is dropped
};

// The record of one layer.
struct LayerRouting {
  std::span<const int32_t> ids;
  std::span<const float> gaps, weights;
};
LayerRouting layer_of(const Routing& routing, size_t micro_batch, size_t layer);

struct RoutingDifference {
  int64_t tokens = 0;     // tokens that chose different sets of experts
  int64_t drops = 0;      // choices that only one run dropped, in sequences where all tokens chose the same experts
  double widest_gap = 0;  // largest gap among those, in either run: of scores, or of gate weights around the capacity
  void add(const RoutingDifference& other);
};
bool differs(const RoutingDifference& difference);

// capacity: of both runs. Drops are not compared without weights.
RoutingDifference compare_routing(const LayerRouting& expected, const LayerRouting& got, int64_t tokens,
                                  CapacityRule capacity);

}  // namespace mw
