#include "layout/placement.h"

#include <algorithm>

#include "base/error.h"

namespace mw {

bool ExpertPlacement::has_replicas() const {
  return std::any_of(homes.begin(), homes.end(), [](const auto& list) { return list.size() > 1; });
}

std::vector<int> ExpertPlacement::experts_of(int ep_rank) const {
  std::vector<std::pair<int, int>> slots;  // slot, expert
  for (size_t e = 0; e < homes.size(); ++e)
    for (const ExpertHome& home : homes[e])
      if (home.ep_rank == ep_rank) slots.emplace_back(home.slot, static_cast<int>(e));
  std::sort(slots.begin(), slots.end());
  std::vector<int> experts;
  for (const auto& [slot, expert] : slots) experts.push_back(expert);
  return experts;
}

std::vector<int32_t> ExpertPlacement::position_of_expert() const {
  MW_CHECK(!has_replicas(), "positions of a placement with replicas");
  std::vector<int32_t> position(homes.size());
  int32_t next = 0;
  for (int rank = 0; rank < ep; ++rank)
    for (const int expert : experts_of(rank)) position[static_cast<size_t>(expert)] = next++;
  return position;
}

std::vector<int64_t> ExpertPlacement::rank_offsets() const {
  std::vector<int64_t> offsets = {0};
  for (int rank = 0; rank < ep; ++rank)
    offsets.push_back(offsets.back() + static_cast<int64_t>(experts_of(rank).size()));
  return offsets;
}

ExpertPlacement make_block_placement(int64_t experts, int ep) {
  if (ep > experts)
    fail(Exit::config, fmt::format("mesh.ep = {} is more than the {} experts of a layer", ep, experts),
         fmt::format("set mesh.ep to at most {}: every expert-parallel rank needs an expert", experts));
  ExpertPlacement placement;
  placement.ep = ep;
  const int64_t base = experts / ep, extra = experts % ep;
  for (int rank = 0; rank < ep; ++rank)
    for (int64_t slot = 0; slot < base + (rank < extra ? 1 : 0); ++slot)
      placement.homes.push_back({ExpertHome{rank, static_cast<int>(slot)}});
  return placement;
}

void validate(const ExpertPlacement& placement) {
  std::vector<std::vector<int>> slots(static_cast<size_t>(placement.ep));
  for (size_t e = 0; e < placement.homes.size(); ++e) {
    if (placement.homes[e].empty())
      fail(Exit::config, fmt::format("the placement assigns expert {} to no rank", e),
           "assign every expert to a rank and a slot");
    for (const ExpertHome& home : placement.homes[e]) {
      if (home.ep_rank < 0 || home.ep_rank >= placement.ep)
        fail(Exit::config,
             fmt::format("the placement assigns expert {} to rank {}, expected 0 to {}", e, home.ep_rank,
                         placement.ep - 1),
             "number ranks from 0 within the expert-parallel group");
      slots[static_cast<size_t>(home.ep_rank)].push_back(home.slot);
    }
  }
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    std::sort(slots[rank].begin(), slots[rank].end());
    for (size_t i = 0; i < slots[rank].size(); ++i)
      if (slots[rank][i] != static_cast<int>(i))
        fail(Exit::config, fmt::format("the placement leaves slot {} of rank {} empty, or fills it twice", i, rank),
             "number the slots of a rank from 0, one expert each");
  }
}

std::vector<SlicePiece> expert_pieces(const ExpertPlacement& placement, int ep_rank) {
  std::vector<SlicePiece> pieces;
  int64_t local = 0;
  for (const int expert : placement.experts_of(ep_rank)) {
    if (!pieces.empty() && pieces.back().global_begin + pieces.back().count == expert) ++pieces.back().count;
    else pieces.push_back({0, expert, local, 1});
    ++local;
  }
  return pieces;
}

}  // namespace mw
