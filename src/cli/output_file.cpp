#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"

namespace mw {

bool refuse_other_file(const std::string& path, std::string_view begin, const char* kind, const char* hint) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) == 0) return false;
  if (!MappedFile(path).text().starts_with(begin))
    fail(Exit::usage, fmt::format("{} exists and is no {}", printable(path), kind), hint);
  return true;
}

void check_picture(const std::string& path, const char* option) {
  refuse_other_file(path, "<svg ", "picture", fmt::format("pass another {} FILE.svg", option).c_str());
  check_output(path);
}

}  // namespace mw
