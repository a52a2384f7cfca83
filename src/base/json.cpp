#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw {

nlohmann::json parse_json(std::string_view text, const std::string& where, Exit exit_code) {
  using nlohmann::json;
  constexpr int kMaxDepth = 64;
  // The lexer takes a zero byte as the end of the text and would let anything follow.
  if (text.find('\0') != std::string_view::npos)
    fail(exit_code, fmt::format("{}: the JSON contains a NUL byte", where),
         "the file is binary or damaged: check the path, or write the file again");
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth)
      fail(exit_code, fmt::format("{}: the JSON is nested more than {} levels deep", where, kMaxDepth),
           "check that the path names the intended file");
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      if (!keys.back().insert(key).second)
        fail(exit_code, fmt::format("{}: key \"{}\" appears twice in one object", where, printable(key)),
             "remove one of the two");
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail(exit_code, fmt::format("{}: not valid JSON: {}", where, printable(error.what(), 200)),
         "the file may be truncated or damaged: write or download it again");
  }
}

}  // namespace mw
