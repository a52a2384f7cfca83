// Random placements of experts, the same for the same seed on every machine.
#pragma once

#include <memory>
#include <random>

#include "config/model_spec.h"
#include "layout/placement.h"

namespace mw::test {

// Every expert on any rank in any slot: ranks have uneven counts, and some may have none.
inline SharedPlacements random_placements(const ModelSpec& model, int ep, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Placements placements = make_block_placements(model, ep);
  placements.version = 1 + static_cast<int64_t>(below(100));
  for (ExpertPlacement& placement : placements.layers) {
    std::vector<size_t> order(placement.homes.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = e;
    for (size_t e = order.size(); e > 1; --e) std::swap(order[e - 1], order[below(e)]);
    std::vector<int> slots(static_cast<size_t>(placement.ep));
    for (const size_t e : order) {
      const size_t rank = below(slots.size());
      placement.homes[e] = {{static_cast<int>(rank), slots[rank]++}};
    }
  }
  return std::make_shared<Placements>(std::move(placements));
}

}  // namespace mw::test
