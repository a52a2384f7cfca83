#include "formats/trace_file.h"

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace mw {

void write_chrome_trace(const std::string& path, const std::vector<TraceEvent>& events, int rank) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (int w = 0; w < kWorkKinds; ++w)
    list.push_back({{"name", "thread_name"},
                    {"ph", "M"},
                    {"pid", rank},
                    {"tid", w},
                    {"args", {{"name", name_of(static_cast<Work>(w))}}}});
  for (const TraceEvent& e : events)
    list.push_back({{"name", e.label},
                    {"ph", "X"},
                    {"pid", rank},
                    {"tid", static_cast<int>(e.work)},
                    {"ts", static_cast<double>(e.begin_ns) * 1e-3},
                    {"dur", static_cast<double>(e.end_ns - e.begin_ns) * 1e-3}});
  const nlohmann::ordered_json root = {{"displayTimeUnit", "ms"}, {"traceEvents", list}};
  write_text_file_atomically(path, root.dump() + "\n");
}

}  // namespace mw
