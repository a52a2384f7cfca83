#include "layout/islands.h"

#include <map>

#include "base/error.h"

namespace mw {

int NodeMap::node_of(int rank) const {
  if (!node_of_rank.empty()) {
    MW_CHECK(rank >= 0 && rank < std::ssize(node_of_rank), "node of rank {} of {}", rank, node_of_rank.size());
    return node_of_rank[static_cast<size_t>(rank)];
  }
  return ranks_per_node == 0 ? 0 : static_cast<int>(rank / ranks_per_node);
}

NodeMap number_nodes(std::span<const uint64_t> names) {
  NodeMap nodes;
  std::map<uint64_t, int> numbers;
  for (const uint64_t name : names)
    nodes.node_of_rank.push_back(numbers.emplace(name, static_cast<int>(numbers.size())).first->second);
  return nodes;
}

bool Islands::is_near(int member, int other) const {
  return island_of[static_cast<size_t>(member)] == island_of[static_cast<size_t>(other)];
}

int Islands::gateway(int source, int island) const {
  const int own = island_of[static_cast<size_t>(source)], place = place_of[static_cast<size_t>(source)];
  const auto here = static_cast<int>(members[static_cast<size_t>(own)].size());
  const auto there = static_cast<int>(members[static_cast<size_t>(island)].size());
  // Where sizes differ, the places of a larger island spread over those of a smaller one, and the other way round, in
  // turns by island.
  const int64_t at = here == there ? place : int64_t{place} * there / here + own;
  return members[static_cast<size_t>(island)][static_cast<size_t>(at % there)];
}

std::vector<int> Islands::sources_of(int member) const {
  std::vector<int> sources;
  for (int source = 0; source < size(); ++source)
    if (!is_near(source, member) && gateway(source, island_of[static_cast<size_t>(member)]) == member)
      sources.push_back(source);
  return sources;
}

NodesSeen nodes_seen(const Islands& islands, int member) {
  NodesSeen seen;
  const int own = islands.island_of[static_cast<size_t>(member)];
  for (int island = 0; island < islands.count(); ++island) {
    const std::vector<int>& members = islands.members[static_cast<size_t>(island)];
    if (island == own) seen.near = members;
    else seen.others.push_back(members);
  }
  seen.sources = std::ssize(islands.sources_of(member));
  return seen;
}

Islands make_islands(std::span<const int> ranks, const NodeMap& nodes) {
  Islands islands;
  std::map<int, int> island_of_node;
  for (size_t m = 0; m < ranks.size(); ++m) {
    const auto [at, is_new] = island_of_node.emplace(nodes.node_of(ranks[m]), islands.count());
    if (is_new) islands.members.emplace_back();
    std::vector<int>& members = islands.members[static_cast<size_t>(at->second)];
    islands.island_of.push_back(at->second);
    islands.place_of.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(m));
  }
  return islands;
}

}  // namespace mw
