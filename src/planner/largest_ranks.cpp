#include "planner/largest_ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <set>

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

// By EP rank, the first of `fullest` with at least as much in every layer.
std::vector<int> likened(const std::vector<Parts>& parts, const std::vector<int>& fullest) {
  std::vector<int> like;
  for (const Parts& own : parts)
    like.push_back(*std::find_if(fullest.begin(), fullest.end(),
                                 [&](int other) { return covers(parts[static_cast<size_t>(other)], own); }));
  return like;
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

// Ranks that differ from each other in the samples that they or their EP groups have, or in the nodes that rows go by
// way of: one of each kind among those with the largest shard of tokens. like: by EP rank, one with as many experts.
std::vector<int> differing_ranks(const RunSpec& whole, const Layout& layout, const Mesh& mesh, MemoryModel& memory,
                                 const std::vector<int>& like) {
  std::map<std::array<int64_t, 3>, int> first;
  const auto note = [&](int rank, int64_t a, int64_t b) {
    const MeshCoords at = coords_of(mesh, rank);
    if (at.tp != 0) return;
    const int full = like[static_cast<size_t>(at.ep)];
    const auto [entry, is_new] = first.try_emplace({a, b, full}, rank);
    if (!is_new && at.ep == full && coords_of(mesh, entry->second).ep != full) entry->second = rank;
  };
  const int stage_ranks = mesh.dp * mesh.tp;
  if (!whole.mesh.shares.empty()) {
    const RunSpec run = with_layout(whole, layout);
    const std::vector<int64_t> samples = samples_by_rank(run, layout.micro_batches, mesh.dp);
    for (int rank = 0; rank < stage_ranks; ++rank) {
      const MeshCoords at = coords_of(mesh, rank);
      note(rank, samples[static_cast<size_t>(at.dp)], tokens_of_ep_group(run, mesh, at));
    }
  }
  for (const MemoryModel::Gateway& gateway : memory.gateways_of(mesh))
    note(gateway.rank, gateway.near, gateway.sources);
  std::vector<int> ranks;
  for (const auto& [kind, rank] : first) ranks.push_back(rank);
  return ranks;
}

}  // namespace

// Rank 0 has as much of everything as any other rank, except experts, samples and rows by way of nodes: other ranks may
// have more of them, or wider slices, with shards of any size. With ZeRO, the last ranks count, too: the first cut may
// lie in the embedding, whose master weights every rank keeps, and the last one in matrices; and with Muon those in the
// middle, as it keeps one moment where AdamW keeps two.
std::vector<int> largest_ranks(const RunSpec& run, const Layout& layout, const Mesh& mesh, MemoryModel& memory) {
  const int last = mesh.dp * mesh.tp - 1;
  const std::vector<Parts> parts = parts_by_rank(memory.placements_of(mesh.ep), mesh.ep);
  std::vector<int> ep_ranks(static_cast<size_t>(mesh.ep));
  std::iota(ep_ranks.begin(), ep_ranks.end(), 0);
  const std::vector<int> fullest = fullest_of(ep_ranks, parts);
  std::vector<int> ranks = {0};
  const auto add = [&](int rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  const auto add_first = [&](auto is_wanted) {
    int rank = 0;
    while (!is_wanted(coords_of(mesh, rank))) ++rank;
    add(rank);
  };
  for (const int ep : fullest) add_first([&](const MeshCoords& at) { return at.ep == ep; });
  const bool shards_differ = do_shards_differ(memory.kinds().model, mesh);
  const bool experts_differ =
      std::any_of(parts.begin(), parts.end(), [&](const Parts& of_rank) { return of_rank != parts.front(); });
  for (int tp = 0; tp < mesh.tp && shards_differ && experts_differ; ++tp) {
    std::set<int> beside;  // EP ranks of this shard
    for (int rank = 0; rank <= last; ++rank)
      if (const MeshCoords at = coords_of(mesh, rank); at.tp == tp) beside.insert(at.ep);
    for (const int ep : fullest_of({beside.begin(), beside.end()}, parts))
      add_first([&](const MeshCoords& at) { return at.tp == tp && at.ep == ep; });
  }
  for (const int rank : differing_ranks(run, layout, mesh, memory, likened(parts, fullest))) add(rank);
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
  for (const int ep : fullest) {
    const auto is_as_full = [&](const MeshCoords& at) {
      return parts[static_cast<size_t>(at.ep)] == parts[static_cast<size_t>(ep)];
    };
    add_last(is_as_full);
    if (shards_differ) add_last([&](const MeshCoords& at) { return is_as_full(at) && at.tp == 0; });
  }
  return ranks;
}

}  // namespace mw
