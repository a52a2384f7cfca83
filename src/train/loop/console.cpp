#include "train/loop/console.h"

#include <algorithm>
#include <cstdio>

namespace mw {
namespace {

// Code points: bytes of UTF-8 that do not go on with one.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string wrap_line(std::string_view line, size_t columns) {
  if (columns_of(line) <= columns) return std::string(line);
  const size_t own_indent = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(own_indent + 4, ' ');
  std::string out(line.substr(0, own_indent));
  size_t used = own_indent;  // columns of the line so far
  bool at_start = true;
  for (size_t begin = own_indent; begin < line.size();) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    begin = end + 1;
    const size_t width = columns_of(word);
    if (at_start) {
      at_start = false;
    } else if (used + 1 + width > columns) {
      out += "\n" + indent;
      used = indent.size();
    } else {
      out += ' ';
      ++used;
    }
    out += word;
    used += width;
  }
  return out;
}

}  // namespace

std::string wrap_text(std::string_view text, size_t columns) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) out += '\n';
    out += wrap_line(text.substr(begin, end - begin), columns);
    begin = end + 1;
  }
  return out;
}

void Console::print(const std::string& text, size_t columns) {
  std::fputs(((columns > 0 ? wrap_text(text, columns) : text) + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace mw
