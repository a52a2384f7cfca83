// Nodes: which ranks of the world share one. An island: those members of a group (such as an EP group) that are on one
// node.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace mw {

// The node of every rank of the world.
struct NodeMap {
  int64_t ranks_per_node = 0;     // consecutive ranks, the last node may have fewer; 0: all ranks on one node
  std::vector<int> node_of_rank;  // node number of each rank, from 0; if not empty, it replaces ranks_per_node
  int node_of(int rank) const;
  bool operator==(const NodeMap&) const = default;
};

// names: by rank, equal for ranks of one node.
NodeMap number_nodes(std::span<const uint64_t> names);

// The islands of a group. Members are numbered as in the group, islands by their first member; an island may
// have any number of members, and these need not be neighbours.
struct Islands {
  std::vector<int> island_of;             // by member
  std::vector<int> place_of;              // by member: its place in its island
  std::vector<std::vector<int>> members;  // by island, ascending

  int size() const { return static_cast<int>(island_of.size()); }
  int count() const { return static_cast<int>(members.size()); }
  bool is_near(int member, int other) const;  // both on one node
  // The gateway: the member of `island` that receives what `source` sends to that island. In islands of equal size its
  // place is that of the source, so that every member is the gateway of one source of each other island. In a smaller
  // island one member is the gateway of several sources of an island.
  int gateway(int source, int island) const;
  // Sources outside the island of `member` that it is the gateway of, ascending.
  std::vector<int> sources_of(int member) const;
};

// What one member sees of its group's nodes: the members on its own node, those on each other node in the order of
// islands, and the number of sources that it is the gateway of.
struct NodesSeen {
  std::vector<int> near = {0};
  std::vector<std::vector<int>> others = {};
  int64_t sources = 0;
  auto operator<=>(const NodesSeen&) const = default;
};
NodesSeen nodes_seen(const Islands& islands, int member);

// ranks: world ranks of the group's members, in order.
Islands make_islands(std::span<const int> ranks, const NodeMap& nodes);

}  // namespace mw
