// A self-contained HTML report about a run: its description, curves, memory, time, and expert load.
#pragma once

#include <string>

#include "formats/report/metrics_file.h"

namespace mw {

// The page has no scripts and loads nothing: it can be opened from a file. `title` is printed at the top.
std::string draw_report(const MetricsHistory& history, const std::string& title);

}  // namespace mw
