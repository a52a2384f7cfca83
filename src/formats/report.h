// One self-contained HTML page about a run: which run it is, curves, memory, time, and the load of experts.
#pragma once

#include <string>

#include "formats/metrics_file.h"

namespace mw {

// No scripts, nothing from elsewhere: it opens from a file. `title` stands at the top.
std::string draw_report(const MetricsHistory& history, const std::string& title);

}  // namespace mw
