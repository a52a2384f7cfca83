// What would make a request fit that does not: single changes, each of them tried.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace mw {

struct Remedies {
  std::vector<std::string> enough;  // with any one of these some layout fits: "memory.moments=bf16", "--ranks 16"
  std::vector<std::string> tried;   // and with none of these
};

// Of memory, the shortest cut of the sequence that is enough, and the fewest ranks, in steps of two up to 64 times as
// many or as far as the links of the profile reach.
Remedies find_remedies(const Request& request);

// One sentence: what is enough, or what is not.
std::string describe(const Remedies& remedies, const Request& request);

}  // namespace mw
