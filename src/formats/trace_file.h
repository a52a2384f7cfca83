// Chrome trace: JSON that chrome://tracing and ui.perfetto.dev open.
#pragma once

#include <string>
#include <vector>

#include "core/trace.h"

namespace mw {

// Before a run that ends by writing one: makes its folder. Errors: Exit::data where no file can be written there.
void prepare_trace_file(const std::string& path);

// Complete ("X") events in microseconds. One lane per kind of work where all of them are the host's; else one for what
// the host did, one for the GPU's computing and one for its communication. Errors: Exit::data naming the path.
void write_chrome_trace(const std::string& path, const std::vector<TraceEvent>& events, int rank);

}  // namespace mw
