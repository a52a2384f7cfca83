#include "moe/forced_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "core/rng.h"

namespace mw {
namespace {

constexpr int64_t kParts = 16, kHeat = 4;  // a part of the experts gets so many times the mean
constexpr int64_t kMoveSteps = 10, kBurstEvery = 50, kBurstSteps = 5;

// A permutation of 0..n-1.
std::vector<int32_t> shuffled(int64_t n, RngKey key) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits_at(key, i) % i]);
  return order;
}

// Divides `rate` over the experts of which `gets` is 1.
void spread(std::vector<uint64_t>& rates, uint64_t rate, const std::vector<char>& gets) {
  uint64_t left = static_cast<uint64_t>(std::count(gets.begin(), gets.end(), 1));
  for (size_t e = 0; e < rates.size(); ++e) {
    if (gets[e] == 0) continue;
    rates[e] = rate / left;
    rate -= rates[e];
    --left;
  }
}

// Which experts are hot.
std::vector<char> hot_set(ForcedLoad load, int64_t experts, uint64_t seed, int64_t step) {
  std::vector<char> hot(static_cast<size_t>(experts));
  const int64_t count = std::max<int64_t>(1, experts / kParts), parts = experts / count;
  const RngKey key = make_rng_key(seed, "forced_load");
  const std::vector<int32_t> order = shuffled(experts, key);
  auto part = static_cast<int64_t>(bits_at(key, 0) % static_cast<uint64_t>(parts));
  if (load == ForcedLoad::moving) part = (part + (step - 1) / kMoveSteps) % parts;
  for (int64_t i = 0; i < count; ++i) {
    int64_t e = part * count + i;
    if (load == ForcedLoad::hot_experts) e = order[static_cast<size_t>(i)];
    if (load == ForcedLoad::hot_spread) e = part + i * parts;
    hot[static_cast<size_t>(e)] = 1;
  }
  return hot;
}

}  // namespace

std::vector<uint64_t> forced_rates(ForcedLoad load, int64_t experts, int64_t top_k, uint64_t seed, int64_t step) {
  const auto n = static_cast<size_t>(experts);
  std::vector<uint64_t> rates(n);
  std::vector<char> gets(n, 1);
  uint64_t all = static_cast<uint64_t>(top_k) * kRateOne;
  if (load == ForcedLoad::burst)
    load = (step - 1) % kBurstEvery >= kBurstEvery - kBurstSteps ? ForcedLoad::hot_rank : ForcedLoad::balanced;
  switch (load) {
    case ForcedLoad::none:
    case ForcedLoad::balanced: break;
    case ForcedLoad::one_expert:
      for (size_t e = static_cast<size_t>(top_k); e < n; ++e) gets[e] = 0;
      break;
    case ForcedLoad::skip_expert: gets[0] = 0; break;
    case ForcedLoad::idle_experts:
      for (size_t e = 0; e < n; ++e)
        if (e >= n - n / 4 || e % 4 == 3) gets[e] = 0;
      break;
    default: {
      const std::vector<char> hot = hot_set(load, experts, seed, step);
      const auto count = static_cast<uint64_t>(std::count(hot.begin(), hot.end(), 1));
      const uint64_t heat = std::min(kRateOne, kHeat * all / static_cast<uint64_t>(experts));
      spread(rates, count * heat, hot);
      all -= count * heat;
      for (size_t e = 0; e < n; ++e) gets[e] = hot[e] == 0 ? 1 : 0;
    }
  }
  if (const auto left = std::count(gets.begin(), gets.end(), 1); all > static_cast<uint64_t>(left) * kRateOne)
    fail(Exit::config,
         fmt::format("moe.forced_load = \"{}\" leaves {} of {} experts, each token chooses {}", word_of(load), left,
                     experts, top_k),
         "lower model.top_k, or choose another moe.forced_load");
  if (all > 0) spread(rates, all, gets);
  return rates;
}

void check_forced_load(const RunSpec& run, const ModelSpec& model) {
  if (run.moe.forced_load == ForcedLoad::none) return;
  for (const LayerSpec& layer : model.layers)
    if (layer.feed_forward == FeedForwardKind::moe)
      forced_rates(run.moe.forced_load, layer.moe.experts, layer.moe.top_k, 0, 1);
}

// Experts lie one after the other on a line, in a random order, each as long as its rate. A token chooses those at K
// points, which are 1 apart: no rate is above 1, so they are distinct.
std::vector<int32_t> forced_choices(const RunSpec& run, const MoeSpec& moe, const ForcedTokens& tokens) {
  const auto seed = static_cast<uint64_t>(run.train.seed);
  const std::vector<uint64_t> rates = forced_rates(run.moe.forced_load, moe.experts, moe.top_k, seed, tokens.step);
  const RngKey key = make_rng_key(seed, fmt::format("forced_load.{}.{}", tokens.step, tokens.layer));
  std::vector<int32_t> line;
  std::vector<uint64_t> ends;
  for (const int32_t e : shuffled(moe.experts, key)) {
    if (rates[static_cast<size_t>(e)] == 0) continue;
    line.push_back(e);
    ends.push_back((ends.empty() ? 0 : ends.back()) + rates[static_cast<size_t>(e)]);
  }
  // For each of a number of equal parts of the line, the first expert that may lie at a point of it.
  const uint64_t parts = 4 * line.size(), part = ends.back() / parts + 1;
  std::vector<size_t> guide;
  for (uint64_t i = 0; i < parts; ++i)
    guide.push_back(static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), i * part) - ends.begin()));
  constexpr uint32_t kGoldenRatio = 2654435769U;  // 2^32 times 0.618...
  const auto start = static_cast<uint32_t>(bits_at(key, 0));
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(tokens.count * moe.top_k));
  for (int64_t t = tokens.first; t < tokens.first + tokens.count; ++t) {
    const uint32_t point = start + static_cast<uint32_t>(t) * kGoldenRatio;
    for (uint64_t k = 0; k < static_cast<uint64_t>(moe.top_k); ++k) {
      const uint64_t at = k * kRateOne + point;
      size_t i = guide[at / part];
      while (ends[i] <= at) ++i;
      ids.push_back(line[i]);
    }
  }
  return ids;
}

}  // namespace mw
