#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace mw {

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f}s", std::max(0.0, seconds));
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string format_count(double count) {
  if (count >= 1e9) return fmt::format("{:.2f}B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f}M", count / 1e6);
  if (count >= 1e4) return fmt::format("{:.1f}k", count / 1e3);
  return fmt::format("{:.0f}", count);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

std::string format_shape(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

static size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string begin = lower_case(word.substr(0, 64));
  std::string best;
  size_t best_distance = std::string::npos;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) continue;
    const size_t distance = edit_distance(begin, lower_case(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best_distance <= std::max<size_t>(2, best.size() / 3) ? best : std::string();
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", best);
}

std::optional<uint32_t> next_code_point(std::string_view text, size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  if (lead < 0xc2 || lead > 0xf4) return std::nullopt;
  const int trail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t code = lead & (0x3fu >> trail);
  for (int k = 0; k < trail; ++k, ++at) {
    if (at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80) return std::nullopt;
    code = (code << 6) | (static_cast<unsigned char>(text[at]) & 0x3fu);
  }
  static constexpr uint32_t kLowest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLowest[trail] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return std::nullopt;
  return code;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (!next_code_point(text, at)) return false;
  return true;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) out += c;
    else out += fmt::format("\\x{:02x}", byte);
  }
  if (text.size() > limit) out += "...";
  return out;
}

// Code points: bytes of UTF-8 that do not go on with one.
static size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

static std::string wrap_line(std::string_view line, size_t columns, size_t more_indent, bool keeps_tables) {
  const size_t own_indent = std::min(line.find_first_not_of(' '), line.size());
  const bool is_table = line.find("  ", own_indent) != std::string_view::npos;
  if (columns_of(line) <= columns || (keeps_tables && is_table)) return std::string(line);
  const std::string indent(own_indent + more_indent, ' ');
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

std::string wrap_text(std::string_view text, size_t columns, size_t indent, bool keeps_tables) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) out += '\n';
    out += wrap_line(text.substr(begin, end - begin), columns, indent, keeps_tables);
    begin = end + 1;
  }
  return out;
}

}  // namespace mw
