// The keys of a run file: one table for reading, checking, overriding, printing and documenting.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "config/run_spec.h"

namespace mw {

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
};
struct ChoiceKey {
  std::vector<std::string> words;                              // in the order of messages and documents
  std::function<std::string(RunSpec&)> word;                   // of the value
  std::function<void(RunSpec&, const std::string& word)> set;  // to one of `words`
};
struct BoolKey {
  std::function<bool&(RunSpec&)> field;
};
struct ListKey {
  std::function<std::vector<std::string>&(RunSpec&)> field;
};

struct KeyRule {
  std::string key;
  std::variant<IntegerKey, RealKey, TextKey, ChoiceKey, BoolKey, ListKey> kind;
  std::string meaning;
};

// All of them, grouped by section.
const std::vector<KeyRule>& key_rules();

}  // namespace mw
