// The keys of a run file: one table for reading, checking, overriding, printing and documenting.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "config/run_spec.h"

namespace mw {

using Choices = std::vector<std::string>;

struct IntegerKey {
  std::function<int64_t&(RunSpec&)> field;
  int64_t low, high;
};
struct RealKey {
  std::function<double&(RunSpec&)> field;
  double low, high;
};
struct TextKey {
  std::function<std::string&(RunSpec&)> field;
  Choices choices;  // empty: any text
};
struct BoolKey {
  std::function<bool&(RunSpec&)> field;
};
struct ListKey {
  std::function<std::vector<std::string>&(RunSpec&)> field;
};

struct KeyRule {
  std::string key;
  std::variant<IntegerKey, RealKey, TextKey, BoolKey, ListKey> kind;
  std::string meaning;
};

// All of them, grouped by section.
const std::vector<KeyRule>& key_rules();

}  // namespace mw
