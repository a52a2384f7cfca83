#include "planner/largest_ranks.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "layout/byte_table.h"
#include "layout/shards.h"
#include "layout/shares.h"

namespace mw {
namespace {

using Parts = std::vector<int64_t>;  // of an EP rank, by MoE layer

std::vector<Parts> parts_by_rank(const std::vector<ExpertPlacement>& placements, int ep) {
  std::vector<Parts> parts(static_cast<size_t>(ep));
  for (const ExpertPlacement& placement : placements) {
    if (placement.experts() == 0) continue;  // a dense layer
    const std::vector<int64_t> of_layer = placement.parts();
    for (size_t rank = 0; rank < parts.size(); ++rank) parts[rank].push_back(of_layer[rank]);
  }
  return parts;
}

bool covers(const Parts& a, const Parts& b) {
  return std::equal(a.begin(), a.end(), b.begin(), std::greater_equal<>());
}

// Of these EP ranks those that may have most: no other has at least as much in every layer. Of ranks with the same, the
// first.
std::vector<int> fullest_of(const std::vector<int>& ep_ranks, const std::vector<Parts>& parts) {
  const auto of = [&](int rank) -> const Parts& { return parts[static_cast<size_t>(rank)]; };
  std::vector<int> fullest;
  for (const int rank : ep_ranks) {
    if (std::any_of(fullest.begin(), fullest.end(), [&](int other) { return covers(of(other), of(rank)); })) continue;
    std::erase_if(fullest, [&](int other) { return covers(of(rank), of(other)); });
    fullest.push_back(rank);
  }
  return fullest;
}

// Whether TP ranks hold unequal shards.
bool do_shards_differ(const ModelSpec& model, const Mesh& mesh) {
  const int tp = mesh.tp;
  return vocab_part(model, tp, 0).count != vocab_part(model, tp, tp - 1).count ||
         std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
           const int64_t of_experts = mesh.ted ? layer.moe.width % tp + layer.moe.shared_width % tp : 0;
           return head_shard(layer.attention, tp, 0).heads.count !=
                      head_shard(layer.attention, tp, tp - 1).heads.count ||
                  layer.dense_width % tp != 0 || of_experts != 0;
         });
}

// Ranks of one class differ in their experts alone.
struct RankClass {
  int64_t samples = 0, group_tokens = 0;
  MemoryModel::GatewayLoad load;
  int tp = 0;  // where shards differ
  int pp = 0;  // where nodes do, which can cut each stage in another way
  auto operator<=>(const RankClass&) const = default;
};

// By class and EP rank, the first rank.
using RankClasses = std::map<RankClass, std::map<int, int>>;

// loads: of MemoryModel::gateway_loads_of.
RankClasses classify_ranks(const RunSpec& run, const Layout& layout, const Mesh& mesh,
                           const std::vector<MemoryModel::GatewayLoad>& loads, bool shards_differ) {
  const std::vector<int64_t> samples = samples_by_rank(run, layout.micro_batches, mesh.dp);
  RankClasses classes;
  for (int rank = 0; rank < mesh.world; ++rank) {
    const MeshCoords at = coords_of(mesh, rank);
    RankClass own;
    own.samples = samples[static_cast<size_t>(at.dp)];
    own.tp = shards_differ ? at.tp : 0;
    if (!run.mesh.shares.empty()) own.group_tokens = tokens_of_ep_group(samples, run.train.seq_len, mesh, at);
    if (!loads.empty()) {
      own.load = loads[static_cast<size_t>(rank)];
      own.pp = at.pp;
    }
    classes[own].try_emplace(at.ep, rank);
  }
  return classes;
}

// Where neither samples nor nodes differ: one class, or one for each shard.
RankClasses classify_shards(const Mesh& mesh, bool shards_differ) {
  RankClasses classes;
  for (int rank = 0; rank < mesh.dp * mesh.tp; ++rank) {
    const MeshCoords at = coords_of(mesh, rank);
    RankClass own;
    own.tp = shards_differ ? at.tp : 0;
    std::map<int, int>& first = classes[own];
    first.try_emplace(at.ep, rank);
    if (!shards_differ && std::ssize(first) == mesh.ep) break;
  }
  return classes;
}

}  // namespace

// With ZeRO, the last ranks count, too: the first cut may lie in the embedding, whose master weights every rank keeps,
// and the last one in matrices; and with Muon those in the middle, as it keeps one moment where AdamW keeps two.
std::vector<int> largest_ranks(const RunSpec& run, const Layout& layout, const Mesh& mesh, MemoryModel& memory) {
  const int last = mesh.dp * mesh.tp - 1;
  const std::vector<Parts> parts = parts_by_rank(memory.placements_of(mesh.ep), mesh.ep);
  const bool shards_differ = do_shards_differ(memory.kinds().model, mesh);
  const bool experts_differ =
      std::any_of(parts.begin(), parts.end(), [&](const Parts& of_rank) { return of_rank != parts.front(); });
  const std::vector<MemoryModel::GatewayLoad>& loads = memory.gateway_loads_of(mesh);
  std::vector<int> ranks = {0};
  const auto add = [&](int rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  const RankClasses classes = !run.mesh.shares.empty() || !loads.empty()
                                  ? classify_ranks(run, layout, mesh, loads, shards_differ)
                                  : classify_shards(mesh, shards_differ && experts_differ);
  for (const auto& [own, first] : classes) {
    std::vector<int> ep_ranks;
    for (const auto& [ep, rank] : first) ep_ranks.push_back(ep);
    for (const int ep : fullest_of(ep_ranks, parts)) add(first.at(ep) % (last + 1));
  }
  if (layout.zero == 0 || last == 0) return ranks;
  add(last);
  if (run.train.optimizer == Optimizer::muon) add(last / 2);
  const auto add_last = [&](auto is_like_largest) {  // rank 0, where none is
    int rank = last;
    while (rank > 0 && !is_like_largest(coords_of(mesh, rank))) --rank;
    add(rank);
  };
  if (shards_differ) add_last([](const MeshCoords& at) { return at.tp == 0; });
  if (!experts_differ) return ranks;
  std::vector<int> ep_ranks(static_cast<size_t>(mesh.ep));
  std::iota(ep_ranks.begin(), ep_ranks.end(), 0);
  for (const int ep : fullest_of(ep_ranks, parts)) {
    const auto is_as_full = [&](const MeshCoords& at) {
      return parts[static_cast<size_t>(at.ep)] == parts[static_cast<size_t>(ep)];
    };
    add_last(is_as_full);
    if (shards_differ) add_last([&](const MeshCoords& at) { return is_as_full(at) && at.tp == 0; });
  }
  return ranks;
}

}  // namespace mw
