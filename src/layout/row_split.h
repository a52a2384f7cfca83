// How the rows of an expert are split over its copies, and what that makes of the load of ranks. A copy is a rank's
// place of an expert in a placement (ExpertHome); an expert with one copy sends it all of its rows. Everything is
// computed with integers from counts that all ranks know, so that all ranks get the same split on any machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "layout/placement.h"

namespace mw {

// Relative speeds of ranks are integers: rows per unit of time.
constexpr int64_t kMostSpeed = 1000;

// By expert, in the order of its homes: the rows of each copy. They add up to the expert's rows.
using RowQuotas = std::vector<std::vector<int64_t>>;

// Policy `fill`: splits rows evenly first. Then every expert with several copies, largest first (ties: lower number
// first) levels the times (rows / speed) of the ranks that hold it, in three passes. To a row, the largest time is
// never above that of an even split, and the least possible where only one expert has several copies. rows: by expert,
// at most 2^40 in all. speeds: by rank, 1 to kMostSpeed. Time: O(copies log copies).
RowQuotas split_rows(const ExpertPlacement& placement, std::span<const int64_t> rows, std::span<const int64_t> speeds);

// Rows / copies for every copy; earlier copies get what is left over.
RowQuotas split_rows_evenly(const ExpertPlacement& placement, std::span<const int64_t> rows);

// The rows of one expert are in the order of (source, order at the source), and each copy gets neighbours: first those
// of the first copy. So what a source sends to a copy is what two ranges of these rows share.
struct RowRange {
  int64_t begin = 0, count = 0;
};
inline int64_t shared_rows(const RowRange& a, const RowRange& b) {
  return std::max<int64_t>(0, std::min(a.begin + a.count, b.begin + b.count) - std::max(a.begin, b.begin));
}

// By rank: the rows of its copies.
std::vector<int64_t> rows_of_ranks(const ExpertPlacement& placement, const RowQuotas& quotas);

// The time of the slowest rank relative to a perfect balance: max(rows / speed) * sum(speeds) / sum(rows). 1 without
// rows.
double imbalance_of(std::span<const int64_t> rows_of_ranks, std::span<const int64_t> speeds);

}  // namespace mw
