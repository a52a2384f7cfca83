#include "train/routing_check.h"

#include <algorithm>
#include <map>
#include <utility>

namespace mw {
namespace {

struct Choice {
  int64_t token = 0;
  float weight = 0;
};

// The choices of each expert among tokens [begin, end), in the order in which build_token_layout keeps them.
std::map<int32_t, std::vector<Choice>> rank_choices(const LayerRouting& layer, int64_t begin, int64_t end, int64_t k) {
  std::map<int32_t, std::vector<Choice>> by_expert;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = t * k; i < (t + 1) * k; ++i)
      by_expert[layer.ids[static_cast<size_t>(i)]].push_back({t, layer.weights[static_cast<size_t>(i)]});
  for (auto& [expert, choices] : by_expert)
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.weight > b.weight; });
  return by_expert;
}

// Of one expert in one sequence. Both runs hold the same tokens.
void compare_drops(const std::vector<Choice>& expected, const std::vector<Choice>& got, int64_t capacity,
                   RoutingDifference& difference) {
  if (std::ssize(expected) <= capacity) return;
  const auto kept = static_cast<size_t>(capacity);
  const double lowest_kept = expected[kept - 1].weight, highest_dropped = expected[kept].weight;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto other =
        std::find_if(got.begin(), got.end(), [&](const Choice& choice) { return choice.token == expected[i].token; });
    const bool was_kept = i < kept, is_kept = other - got.begin() < capacity;
    if (was_kept == is_kept) continue;
    const double weight = expected[i].weight, gap = was_kept ? weight - highest_dropped : lowest_kept - weight;
    ++difference.drops;
    difference.widest_gap = std::max(difference.widest_gap, gap);
  }
}

}  // namespace

LayerRouting layer_of(const Routing& routing, size_t micro_batch, size_t layer) {
  return {routing.ids[micro_batch][layer], routing.gaps[micro_batch][layer], routing.weights[micro_batch][layer]};
}

RoutingDifference compare_routing(const LayerRouting& expected, const LayerRouting& got, int64_t tokens,
                                  CapacityRule capacity) {
  RoutingDifference difference;
  if (tokens == 0 || expected.ids.empty()) return difference;
  const int64_t k = std::ssize(expected.ids) / tokens;
  const auto set_of = [&](const LayerRouting& layer, int64_t t) {
    std::vector<int32_t> set(layer.ids.begin() + t * k, layer.ids.begin() + (t + 1) * k);
    std::sort(set.begin(), set.end());
    return set;
  };
  const bool drops = capacity.capacity > 0 && !expected.weights.empty();
  const int64_t domain = drops ? capacity.domain_tokens : 1;
  for (int64_t begin = 0; begin < tokens; begin += domain) {
    const int64_t end = std::min(tokens, begin + domain), before = difference.tokens;
    for (int64_t t = begin; t < end; ++t) {
      if (set_of(expected, t) == set_of(got, t)) continue;
      ++difference.tokens;
      difference.widest_gap =
          std::max(difference.widest_gap, static_cast<double>(expected.gaps[static_cast<size_t>(t)]));
    }
    if (!drops || difference.tokens != before) continue;
    const auto others = rank_choices(got, begin, end, k);
    for (const auto& [expert, choices] : rank_choices(expected, begin, end, k))
      compare_drops(choices, others.at(expert), capacity.capacity, difference);
  }
  return difference;
}

RoutingDifference sum_up(const std::vector<std::vector<RoutingDifference>>& differences) {
  RoutingDifference sum;
  for (const std::vector<RoutingDifference>& layers : differences) {
    bool differed = false;
    for (const RoutingDifference& layer : layers) {
      if (!differed) sum.widest_gap = std::max(sum.widest_gap, layer.widest_gap);
      differed = differed || layer.tokens > 0 || layer.drops > 0;
      sum.tokens += layer.tokens;
      sum.drops += layer.drops;
    }
  }
  return sum;
}

}  // namespace mw
