// What to answer to a run-file key that does not exist.
#pragma once

#include <string>

namespace mw {

struct UnknownKey {
  std::string suggestion;  // `, did you mean "train.lr"?` or ""
  std::string hint;
};

// Knows the names that other trainers use, then keys of the same last part ("steps"), then keys of similar spelling.
UnknownKey explain_unknown_key(const std::string& key);

}  // namespace mw
