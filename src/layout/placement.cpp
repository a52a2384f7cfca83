#include "layout/placement.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "config/model_spec.h"

namespace mw {

std::vector<int64_t> ExpertPlacement::parts() const {
  if (is_sliced()) return widths;
  std::vector<int64_t> counts(static_cast<size_t>(ep));
  for (const std::vector<ExpertHome>& list : homes) ++counts[static_cast<size_t>(list.front().ep_rank)];
  return counts;
}

int ExpertPlacement::widest() const {
  const std::vector<int64_t> all = parts();
  return static_cast<int>(std::max_element(all.begin(), all.end()) - all.begin());
}

bool ExpertPlacement::has_replicas() const {
  return std::any_of(homes.begin(), homes.end(), [](const auto& list) { return list.size() > 1; });
}

// The experts that have one of their copies [begin, end) on this rank, in slot order.
static std::vector<int> held_by(const ExpertPlacement& placement, int ep_rank, size_t begin, size_t end) {
  if (placement.is_sliced()) ep_rank = 0;
  std::vector<std::pair<int, int>> slots;  // slot, expert
  for (size_t e = 0; e < placement.homes.size(); ++e)
    for (size_t i = begin; i < std::min(end, placement.homes[e].size()); ++i)
      if (const ExpertHome& home = placement.homes[e][i]; home.ep_rank == ep_rank)
        slots.emplace_back(home.slot, static_cast<int>(e));
  std::sort(slots.begin(), slots.end());
  std::vector<int> experts;
  for (const auto& [slot, expert] : slots) experts.push_back(expert);
  return experts;
}

std::vector<int> ExpertPlacement::experts_of(int ep_rank) const { return held_by(*this, ep_rank, 0, 1); }
std::vector<int> ExpertPlacement::replicas_of(int ep_rank) const { return held_by(*this, ep_rank, 1, SIZE_MAX); }
std::vector<int> ExpertPlacement::copies_of(int ep_rank) const { return held_by(*this, ep_rank, 0, SIZE_MAX); }

std::vector<int32_t> ExpertPlacement::position_of_expert() const {
  const std::vector<int64_t> offsets = rank_offsets();
  std::vector<int32_t> position;
  for (const std::vector<ExpertHome>& list : homes)
    position.push_back(static_cast<int32_t>(offsets[static_cast<size_t>(list.front().ep_rank)]) + list.front().slot);
  return position;
}

std::vector<int64_t> ExpertPlacement::rank_offsets() const {
  std::vector<int64_t> offsets = {0};
  for (int rank = 0; rank < ep; ++rank)
    offsets.push_back(offsets.back() + static_cast<int64_t>(experts_of(rank).size()));
  return offsets;
}

void check_expert_ranks(int64_t experts, int64_t ep) {
  if (ep > experts)
    fail(Exit::config, fmt::format("mesh.ep = {} is more than the {} experts of a layer", ep, experts),
         fmt::format("set mesh.ep to at most {}: every expert-parallel rank needs an expert", experts));
}

ExpertPlacement make_block_placement(int64_t experts, int ep) {
  check_expert_ranks(experts, ep);
  std::vector<int64_t> counts(static_cast<size_t>(ep), experts / ep);
  for (int64_t rank = 0; rank < experts % ep; ++rank) ++counts[static_cast<size_t>(rank)];
  return make_block_placement(counts);
}

ExpertPlacement make_block_placement(const std::vector<int64_t>& counts) {
  ExpertPlacement placement;
  placement.ep = static_cast<int>(counts.size());
  for (int rank = 0; rank < placement.ep; ++rank)
    for (int slot = 0; slot < counts[static_cast<size_t>(rank)]; ++slot)
      placement.homes.push_back({ExpertHome{rank, slot}});
  return placement;
}

ExpertPlacement make_sliced_placement(int64_t experts, const std::vector<int64_t>& widths) {
  ExpertPlacement placement;
  placement.ep = static_cast<int>(widths.size());
  placement.widths = widths;
  for (int64_t e = 0; e < experts; ++e) placement.homes.push_back({ExpertHome{0, static_cast<int>(e)}});
  return placement;
}

void validate(const ExpertPlacement& placement, const std::string& where) {
  if (placement.ep < 1)
    fail(Exit::config, fmt::format("{} is for {} expert-parallel ranks, expected at least 1", where, placement.ep),
         "set its number of ranks to mesh.ep");
  if (placement.is_sliced()) {
    if (placement != make_sliced_placement(placement.experts(), placement.widths) ||
        *std::min_element(placement.widths.begin(), placement.widths.end()) < 1)
      fail(Exit::config, fmt::format("{} does not give every rank a slice of every expert", where),
           "list a width of at least 1 for every rank, and all experts in their order");
    return;
  }
  std::vector<std::vector<int>> slots(static_cast<size_t>(placement.ep));
  for (size_t e = 0; e < placement.homes.size(); ++e) {
    if (placement.homes[e].empty())
      fail(Exit::config, fmt::format("{} assigns expert {} to no rank", where, e),
           "assign every expert to a rank and a slot");
    for (const ExpertHome& home : placement.homes[e]) {
      if (home.ep_rank < 0 || home.ep_rank >= placement.ep)
        fail(Exit::config,
             fmt::format("{} assigns expert {} to rank {}, expected 0 to {}", where, e, home.ep_rank, placement.ep - 1),
             "number ranks from 0 within the expert-parallel group");
      slots[static_cast<size_t>(home.ep_rank)].push_back(home.slot);
    }
    for (auto home = placement.homes[e].begin(); home != placement.homes[e].end(); ++home)
      if (std::any_of(placement.homes[e].begin(), home,
                      [&](const ExpertHome& other) { return other.ep_rank == home->ep_rank; }))
        fail(Exit::config, fmt::format("{} assigns expert {} to rank {} twice", where, e, home->ep_rank),
             "place the replicas of an expert on different ranks");
  }
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    std::sort(slots[rank].begin(), slots[rank].end());
    for (size_t i = 0; i < slots[rank].size(); ++i)
      if (slots[rank][i] != static_cast<int>(i))
        fail(Exit::config, fmt::format("{} leaves slot {} of rank {} empty, or fills it twice", where, i, rank),
             "number the slots of a rank from 0, one expert each");
  }
  const std::vector<int64_t> offsets = placement.rank_offsets();
  for (size_t e = 0; e < placement.homes.size(); ++e)
    for (size_t i = 0; i < placement.homes[e].size(); ++i) {
      const auto rank = static_cast<size_t>(placement.homes[e][i].ep_rank);
      if ((i == 0) != (placement.homes[e][i].slot < offsets[rank + 1] - offsets[rank]))
        fail(Exit::config, fmt::format("{} mixes homes and replicas in the slots of rank {}", where, rank),
             "number the replicas of a rank behind the experts that have their home there");
    }
}

Placements make_block_placements(const ModelSpec& model, int ep, const std::vector<std::vector<int64_t>>& widths) {
  Placements placements;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    const bool has_slices = i < widths.size() && !widths[i].empty();
    if (layer.feed_forward != FeedForwardKind::moe) placements.layers.emplace_back();
    else if (has_slices) placements.layers.push_back(make_sliced_placement(layer.moe.experts, widths[i]));
    else placements.layers.push_back(make_block_placement(layer.moe.experts, ep));
  }
  return placements;
}

void validate(const Placements& placements, const ModelSpec& model, int ep) {
  constexpr const char* kCure = "make the placement from this model and mesh.ep";
  if (placements.version < 0)
    fail(Exit::config, fmt::format("the placement has version {}, expected 0 or more", placements.version),
         "count the versions of a placement from 0");
  if (placements.layers.size() != model.layers.size())
    fail(Exit::config,
         fmt::format("the placement has {} layers, the model has {}", placements.layers.size(), model.layers.size()),
         kCure);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const ExpertPlacement& placement = placements.layers[i];
    const bool is_moe = model.layers[i].feed_forward == FeedForwardKind::moe;
    const int64_t experts = is_moe ? model.layers[i].moe.experts : 0;
    const std::string where = fmt::format("the placement of layer {}", i);
    if (placement.experts() != experts)
      fail(Exit::config,
           fmt::format("{} has {} experts, the layer has {}{}", where, placement.experts(), experts,
                       is_moe ? "" : " because it is dense"),
           kCure);
    if (is_moe && placement.ep != ep)
      fail(Exit::config, fmt::format("{} is for {} expert-parallel ranks, but mesh.ep = {}", where, placement.ep, ep),
           kCure);
    validate(placement, where);
    const int64_t width = std::accumulate(placement.widths.begin(), placement.widths.end(), int64_t{0});
    if (placement.is_sliced() && width != model.layers[i].moe.width)
      fail(
          Exit::config,
          fmt::format("{} has slices of {} features in all, an expert has {}", where, width, model.layers[i].moe.width),
          kCure);
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
