// What `moewright plan` prints about a search.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/search.h"

namespace mw {

// The request, how many layouts were weighed, the best `top` with step time and why they are slower than the first,
// memory of the first by stage, and what would be faster but does not fit or leaves too small a margin.
std::string describe(const Request& request, const SearchResult& result, int top);

// One layout: time, memory by stage, its place among all, why it is slower than the best, and, where it does not fit,
// what is largest in it and which single change helps.
std::string describe_one(const Request& request, const SearchResult& result, const Estimate& estimate);

// The same as JSON, for programs: numbers in seconds, bytes and FLOP/s.
nlohmann::ordered_json to_json(const Request& request, const SearchResult& result, int top);
nlohmann::ordered_json to_json(const Request& request, const Estimate& estimate);

// One line per layout: seconds, bytes of the largest rank, "fits", "small-margin" or "too-big", layout.
std::string list_all(const Request& request, const SearchResult& result);

// For requests of which nothing fits. Errors: memory, always, with the layout that comes nearest, what is largest in
// it, and the ranks on which something fits.
[[noreturn]] void fail_without_room(const Request& request, const SearchResult& result);

}  // namespace mw
