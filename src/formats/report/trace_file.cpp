#include "formats/report/trace_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace mw {

using Json = nlohmann::ordered_json;

void prepare_trace_file(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;  // what went wrong shows when a file is written
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  if (is_device_or_pipe(path)) return;
  const std::string probe = path + ".probe";
  write_text_file_atomically(probe, "");
  std::filesystem::remove(probe, ignored);
}

void write_chrome_trace(const std::string& path, const std::vector<TraceEvent>& events, int rank) {
  const bool by_lane =
      std::any_of(events.begin(), events.end(), [](const TraceEvent& e) { return e.lane != Lane::host; });
  Json list = Json::array();
  for (int i = 0; i < (by_lane ? kLanes : kWorkKinds); ++i) {
    const char* name = by_lane ? name_of(static_cast<Lane>(i)) : name_of(static_cast<Work>(i));
    list.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", i}, {"args", {{"name", name}}}});
  }
  for (const TraceEvent& e : events) {
    Json event = {{"name", e.label},
                  {"cat", name_of(e.work)},
                  {"ph", "X"},
                  {"pid", rank},
                  {"tid", by_lane ? static_cast<int>(e.lane) : static_cast<int>(e.work)},
                  {"ts", static_cast<double>(e.begin_ns) * 1e-3},
                  {"dur", static_cast<double>(e.end_ns - e.begin_ns) * 1e-3}};
    if (e.argument.name != nullptr) event["args"] = {{e.argument.name, e.argument.value}};
    list.push_back(std::move(event));
  }
  const Json root = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(list)}};
  write_output_text(path, root.dump() + "\n");
}

}  // namespace mw
