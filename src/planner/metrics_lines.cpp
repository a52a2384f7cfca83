#include "planner/metrics_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/json.h"

namespace mw {

void for_each_step(std::string_view text, const std::string& path, size_t most,
                   const std::function<void(const nlohmann::json& step, const std::string& where)>& take) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  bool found = false;
  const size_t first = lines.size() > most ? lines.size() - most : 0;
  for (size_t i = std::max(first, std::min(kPreparingSteps, lines.size())); i < lines.size(); ++i) {
    const std::string where = fmt::format("{}, line {}", path, i + 1);
    const nlohmann::json json = parse_json(lines[i], where, Exit::data);
    if (!json.is_object() || !json.contains("step"))
      fail(Exit::data, fmt::format("{}: not a line of metrics: \"step\" is missing", where),
           "pass the metrics file that a run writes with log.jsonl");
    if (json.contains("final_val_loss")) continue;  // describes no step
    found = true;
    take(json, where);
  }
  if (!found)
    fail(Exit::data, fmt::format("{} has no step after the first {}, which are warm-up", path, kPreparingSteps),
         "pass the metrics file of a longer run");
}

}  // namespace mw
