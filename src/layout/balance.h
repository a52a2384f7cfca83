// Plans where the experts of a layer should be: from the rows that each expert got lately, and from where the experts
// are, it finds a placement in which the ranks need about equally long and few experts change their rank. Pure
// functions of their arguments: all ranks plan alike without a message.
//
// A copy is a rank's place of an expert (ExpertHome): its home, which owns the optimizer state, or a replica, which
// shares its rows (layout/row_split.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/placement.h"
#include "layout/swap_search.h"

namespace mw {

// The ranks of an EP group as the search sees them.
struct BalanceRanks {
  std::vector<int64_t> speeds;  // by rank, relative: 1 to kMostSpeed (layout/row_split.h)
  std::vector<int> slots;       // by rank: the most experts that it may hold
  int replicas = 0;             // copies beyond the first, of all experts together; at most slots - experts
  int per_node = 0;             // ranks of a node; 0: all ranks are on one node
  std::vector<int> homes = {};  // by rank: the experts that have their home there, at most slots; empty: any number
};
// Equally fast ranks that each stay the home of as many experts as in `placement`, and hold replica_slots more.
BalanceRanks even_ranks(const ExpertPlacement& placement, int replica_slots = 0);

// Finds a placement by swap_search (layout/swap_search.h).
//
// With several nodes (per_node > 0) owners are exchanged between nodes first, as if nodes were ranks, and then the
// search runs inside each node: replicas stay on the node of their owner.
//
// With ranks.homes the copies that the search chose may leave too few experts that a rank could be the home of: such a
// rank becomes the home of another one, in place of a replica if it has no free slot. Replicas may then be on other
// nodes.
//
// rows: by expert, at least 0. Homes and replicas that stay keep their slots, and homes stay where a copy stays;
// without ranks.homes, a new home is the copy whose rank takes over fewest others. Requires: `now` is valid and not
// sliced, slots for all experts. Deterministic; ties go to the lower rank and expert.
ExpertPlacement balance_experts(const ExpertPlacement& now, std::span<const int64_t> rows, const BalanceRanks& ranks,
                                const BalanceStop& stop = {});

// What changes between two placements of one layer.
struct PlacementChange {
  int64_t moves = 0;                                    // experts that ranks receive: a copy, an owner, or both
  std::vector<int64_t> copies_to, owners_to;            // by rank: copies that arrive; owners that arrive
  int64_t most_replicas = 0, most_replicas_before = 0;  // of any rank
};
PlacementChange change_between(const ExpertPlacement& from, const ExpertPlacement& to);

// What decides whether a change of placement is worth its cost.
struct BalanceCosts {
  double expert_seconds = 0;    // of a rank in this layer, per step, if all ranks had equally much to compute
  double weight_bytes = 0;      // of an expert, as every copy has them
  double state_bytes = 0;       // more that its owner has: master weights and moments
  double bytes_per_second = 0;  // of them, that a rank receives
  double replica_seconds = 0;   // in which a replica sends its gradient and receives new weights, in every step
  int64_t horizon = 0;          // steps
};
// The seconds that `to` saves in a step, by its smaller imbalance of `rows` and less what its replicas cost.
double seconds_saved_per_step(const ExpertPlacement& from, const ExpertPlacement& to, std::span<const int64_t> rows,
                              std::span<const int64_t> speeds, const BalanceCosts& costs);
// What it saves over the horizon, less the time in which the rank that receives most receives its experts. Negative:
// the change does not pay.
double seconds_saved(const ExpertPlacement& from, const ExpertPlacement& to, std::span<const int64_t> rows,
                     std::span<const int64_t> speeds, const BalanceCosts& costs);

// The placement that saves most, with at most replica_slots replicas on a rank, which cost time
// in every step; `now` where none pays. As balance_experts otherwise.
ExpertPlacement best_placement(const ExpertPlacement& now, std::span<const int64_t> rows,
                               const std::vector<int64_t>& speeds, int replica_slots, const BalanceCosts& costs);

}  // namespace mw
