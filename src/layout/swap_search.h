// The search behind balance_experts (layout/balance.h): which experts each rank should hold.
#pragma once

#include <cstddef>
#include <vector>

namespace mw {

using ExpertLists = std::vector<std::vector<int>>;  // by rank: the experts that it holds, each once

// Of ranks and experts, which are counted as int.
inline size_t index_of(int i) { return static_cast<size_t>(i); }

struct SearchRanks {
  std::vector<double> speeds;  // by rank: rows per unit of time
  std::vector<int> slots;      // by rank: the most experts that it may hold
  int replicas = 0;            // copies beyond the first, of all experts together
};

// When the search stops.
struct BalanceStop {
  double gap = 0.01;          // the slowest rank is so near to the least possible time, as a share of it
  double least_gain = 0.002;  // the best exchange saves less, as a share of the mean time
};

// First decides the number of copies: each next one goes to the expert with most rows per copy; a copy that exists
// keeps its place unless another expert is 10 % ahead. Experts that no list has get a copy too. New copies go to the
// ranks that need least time. Then, again and again, the slowest rank exchanges an expert with any other rank, or moves
// one into a free slot: the exchange that leaves the least time to the slower of the two. In this search the rows of an
// expert are split evenly over its copies. No rank ever holds two copies of one expert.
// rows: by expert, at least 0. Requires slots for all copies. Deterministic; ties go to the lower rank and expert.
ExpertLists swap_search(ExpertLists lists, std::vector<double> rows, SearchRanks ranks, const BalanceStop& stop);

}  // namespace mw
