// Splits and joins arrays of fp32 values (SplitFloat in base/dtype.h) on the host.
#pragma once

#include <span>
#include <vector>

#include "base/dtype.h"

namespace mw {

struct SplitValues {
  explicit SplitValues(std::span<const float> values) : near(values.size()), rest(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const SplitFloat parts = split_float(values[i]);
      near[i] = parts.near;
      rest[i] = parts.rest;
    }
  }

  std::vector<bf16> near;
  std::vector<uint16_t> rest;
};

}  // namespace mw
