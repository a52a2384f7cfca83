#include "train/verify/routing_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace mw {
namespace {

// How near a run was to another choice; whatever is no number is far.
double distance(double gap) { return std::isnan(gap) ? HUGE_VAL : std::abs(gap); }

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
  const auto rank_of = [](const Choice& choice) { return std::isnan(choice.weight) ? HUGE_VALF : choice.weight; };
  for (auto& [expert, choices] : by_expert)
    std::stable_sort(choices.begin(), choices.end(),
                     [&](const Choice& a, const Choice& b) { return rank_of(a) > rank_of(b); });
  return by_expert;
}

struct Place {
  bool kept = false;
  double margin = 0;  // of weight over the capacity's border, or up to it
};

// By token, of the choices of one expert in one sequence, which are more than its capacity.
std::map<int64_t, Place> places_of(const std::vector<Choice>& choices, size_t capacity) {
  std::map<int64_t, Place> places;
  const double lowest_kept = choices[capacity - 1].weight, highest_dropped = choices[capacity].weight;
  for (size_t i = 0; i < choices.size(); ++i) {
    const bool kept = i < capacity;
    places[choices[i].token] = {kept, distance(choices[i].weight - (kept ? highest_dropped : lowest_kept))};
  }
  return places;
}

// Of one expert in one sequence. Both runs hold the same tokens.
void compare_drops(const std::vector<Choice>& expected, const std::vector<Choice>& got, int64_t capacity,
                   RoutingDifference& difference) {
  if (std::ssize(expected) <= capacity) return;
  const auto others = places_of(got, static_cast<size_t>(capacity));
  for (const auto& [token, place] : places_of(expected, static_cast<size_t>(capacity))) {
    const Place& other = others.at(token);
    if (place.kept == other.kept) continue;
    ++difference.drops;
    difference.widest_gap = std::max({difference.widest_gap, place.margin, other.margin});
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
      const auto at = static_cast<size_t>(t);
      difference.widest_gap = std::max({difference.widest_gap, distance(expected.gaps[at]), distance(got.gaps[at])});
    }
    if (!drops || difference.tokens != before) continue;
    const auto others = rank_choices(got, begin, end, k);
    for (const auto& [expert, choices] : rank_choices(expected, begin, end, k))
      compare_drops(choices, others.at(expert), capacity.capacity, difference);
  }
  return difference;
}

bool differs(const RoutingDifference& difference) { return difference.tokens > 0 || difference.drops > 0; }

void RoutingDifference::add(const RoutingDifference& other) {
  tokens += other.tokens;
  drops += other.drops;
  widest_gap = std::max(widest_gap, other.widest_gap);
}

}  // namespace mw
