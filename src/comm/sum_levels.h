// How the members of a group that TCP alone connects sum a long array: level by level, so that a member of a large
// group exchanges messages with few others.
#pragma once

#include <vector>

namespace mw {

// In a level, `members` members that are `stride` ranks apart sum together: each of them one part of what they hold.
struct SumLevel {
  int stride = 1, members = 1;
  bool operator==(const SumLevel&) const = default;
};

// The levels of a group of so many members, from neighbours to those farthest apart: 256 members sum in groups of 16
// neighbours, then in groups of 16 members that are 16 apart. A level has at most 16 members, unless what is left has
// no such divisor. None for one member.
std::vector<SumLevel> sum_levels(int members);

}  // namespace mw
