#include "planner/wrap.h"

#include <algorithm>

namespace mw {
namespace {

void append_wrapped(std::string& to, std::string_view line, size_t columns) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  const bool is_table = line.find("  ", indent) != std::string_view::npos;
  bool first = true;
  while (!is_table && line.size() > columns) {
    const size_t text = first ? indent : 0;
    size_t space = line.rfind(' ', columns);
    if (space == std::string_view::npos || space < text) space = line.find(' ', std::max(columns, text));
    if (space == std::string_view::npos) break;
    to.append(line.substr(0, space)).append("\n").append(indent + 2, ' ');
    line.remove_prefix(space + 1);
    if (first) columns -= std::min(columns, indent + 2);
    first = false;
  }
  to += line;
}

}  // namespace

std::string wrap_prose(std::string_view text, size_t columns) {
  std::string wrapped;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    append_wrapped(wrapped, text.substr(0, end), columns);
    if (end == std::string_view::npos) break;
    wrapped += '\n';
    text.remove_prefix(end + 1);
  }
  return wrapped;
}

}  // namespace mw
