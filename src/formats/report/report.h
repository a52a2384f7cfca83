// Self-contained HTML reports: of a run, with its description, curves, memory, time, and expert load; and of several
// runs beside each other.
#pragma once

#include <span>
#include <string>

#include "formats/report/metrics_file.h"

namespace mw {

// The page has no scripts and loads nothing: it can be opened from a file. `title` is printed at the top.
std::string draw_report(const MetricsHistory& history, const std::string& title);

struct NamedHistory {
  std::string name;
  MetricsHistory history;
};
constexpr size_t kMostRunsOfReport = 10;  // a color for each

// A page likewise: numbers of the runs, the keys of their run files that differ, and their curves in common charts.
std::string draw_comparison(std::span<const NamedHistory> runs);

}  // namespace mw
