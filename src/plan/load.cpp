#include "plan/load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "spec/shards.h"

namespace mw {
namespace {

constexpr int kDraws = 400;

// The same numbers on every machine.
class Draws {
 public:
  // Marsaglia and Tsang's method; below 1 by a power of a uniform number.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  double uniform() {  // above 0, below 1
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }

  uint64_t state_ = 1;
};

// The fullest rank over the mean, experts in blocks.
double fullest(const std::vector<double>& shares, int64_t ep) {
  const auto experts = std::ssize(shares);
  double most = 0;
  for (int64_t rank = 0; rank < ep; ++rank) {
    const Block block = block_of(experts, ep, rank);
    most =
        std::max(most, std::accumulate(shares.begin() + block.begin, shares.begin() + block.begin + block.count, 0.0));
  }
  return most * static_cast<double>(ep) / std::accumulate(shares.begin(), shares.end(), 0.0);
}

}  // namespace

LoadModel::LoadModel(ExpertLoad load) : load_(std::move(load)) {
  if (load_.histogram.empty()) return;
  const double rows = std::accumulate(load_.histogram.begin(), load_.histogram.end(), 0.0);
  const bool valid = std::all_of(load_.histogram.begin(), load_.histogram.end(),
                                 [](double share) { return std::isfinite(share) && share >= 0; });
  if (!valid || !std::isfinite(rows) || rows <= 0)
    fail(Exit::config, "the load of experts is not a list of rows by expert", "numbers, 0 or more, not all 0");
}

RankLoad LoadModel::of(int64_t experts, int64_t ep) {
  if (ep == 1 || experts <= 1) return {};
  const auto [entry, is_new] = known_.try_emplace({experts, ep});
  if (!is_new) return entry->second;
  if (std::ssize(load_.histogram) == experts) {
    const double load = fullest(load_.histogram, ep);
    return entry->second = {load, load};
  }
  Draws draws;
  std::vector<double> shares(static_cast<size_t>(experts)), loads;
  for (int i = 0; i < kDraws; ++i) {
    for (double& share : shares) share = draws.gamma(load_.concentration);
    loads.push_back(fullest(shares, ep));
  }
  std::sort(loads.begin(), loads.end());
  return entry->second = {std::accumulate(loads.begin(), loads.end(), 0.0) / kDraws, loads[kDraws * 99 / 100]};
}

}  // namespace mw
