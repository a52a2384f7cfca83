#include "comm/sum_levels.h"

#include <algorithm>

namespace mw {
namespace {

constexpr int kMostMembers = 16;

// The largest divisor of `members` that a level should have, or else the smallest one at all.
int level_size(int members) {
  for (int size = std::min(members, kMostMembers); size > 1; --size)
    if (members % size == 0) return size;
  int size = kMostMembers + 1;
  while (members % size != 0) ++size;
  return size;
}

}  // namespace

std::vector<SumLevel> sum_levels(int members) {
  std::vector<SumLevel> levels;
  for (int stride = 1; stride < members; stride *= levels.back().members)
    levels.push_back({stride, level_size(members / stride)});
  return levels;
}

}  // namespace mw
