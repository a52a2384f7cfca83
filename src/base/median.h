// The median of measured values.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace mw {

// The middle value; of an even number of values the upper of the two middle ones, so that it is one that was measured.
// Requires at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace mw
