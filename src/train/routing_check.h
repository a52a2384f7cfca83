// What `verify` keeps of the routing of a step, and how two runs of it differ.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/token_layout.h"

namespace mw {

// Of one step: [micro-batch][MoE layer], over `tokens` tokens each. Behind all layers they stand once more with the
// experts of best score, empty where the loss does not count those, and always without weights.
struct Routing {
  int64_t tokens = 0;
  std::vector<std::vector<std::vector<int32_t>>> ids;    // [T, K]
  std::vector<std::vector<std::vector<float>>> gaps;     // [T]
  std::vector<std::vector<std::vector<float>>> weights;  // [T, K], empty where nothing is dropped
};

// One layer of it.
struct LayerRouting {
  std::span<const int32_t> ids;
  std::span<const float> gaps, weights;
};
LayerRouting layer_of(const Routing& routing, size_t micro_batch, size_t layer);

struct RoutingDifference {
  int64_t tokens = 0;  // that chose another set of experts
  int64_t drops = 0;   // choices that one run dropped and the other kept, in sequences where all tokens chose the same
  double widest_gap = 0;  // among those, in either run: of scores, or of gate weights about the capacity
  void add(const RoutingDifference& other);
};
bool differs(const RoutingDifference& difference);

// capacity: of both runs; nothing is compared of drops without weights.
RoutingDifference compare_routing(const LayerRouting& expected, const LayerRouting& got, int64_t tokens,
                                  CapacityRule capacity);

}  // namespace mw
