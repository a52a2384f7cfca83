// What a Chrome trace holds, by lane and name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace mw {

struct TraceTotals {
  int64_t events = 0;
  double milliseconds = 0;  // of all of them, inner ones included
};

struct TraceSummary {
  std::map<std::pair<int64_t, std::string>, TraceTotals> totals;  // by lane ("tid") and name
  std::map<int64_t, std::string> lanes;                           // their names
  double begin_ms = 0, end_ms = 0;                                // of the first and the last event
};

// Reads the complete ("X") events and the names of lanes. Errors: Exit::data naming `where`, when it is no JSON or no
// trace, or an event lacks name, time or lane.
TraceSummary summarise_trace(std::string_view text, const std::string& where);

}  // namespace mw
