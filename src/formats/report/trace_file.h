// Writes Chrome traces: JSON for chrome://tracing and ui.perfetto.dev.
#pragma once

#include <string>
#include <vector>

#include "core/trace.h"

namespace mw {

// Creates the folder of a trace, before the run that will write it. Errors: Exit::data where no file can be written
// there.
void prepare_trace_file(const std::string& path);

// Writes complete ("X") events in microseconds. When all events are the host's, one lane per kind of work; otherwise
// one lane each for the host, the GPU's compute and its communication. Errors: Exit::data naming the path.
void write_chrome_trace(const std::string& path, const std::vector<TraceEvent>& events, int rank);

}  // namespace mw
