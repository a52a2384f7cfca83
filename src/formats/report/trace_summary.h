// Summarizes a Chrome trace by lane and name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace mw {

struct TraceTotals {
  int64_t events = 0;
  double milliseconds = 0;  // total duration, including inner scopes
};

struct TraceSummary {
  std::map<std::pair<int64_t, std::string>, TraceTotals> totals;  // by lane ("tid") and name
  std::map<int64_t, std::string> lanes;                           // their names
  double begin_ms = 0, end_ms = 0;                                // of the first and the last event
};

// Reads the complete ("X") events and the names of lanes. Errors: Exit::data naming `where`, when it is not JSON or not
// a trace, or an event has no name, time or lane.
TraceSummary summarise_trace(std::string_view text, const std::string& where);

}  // namespace mw
