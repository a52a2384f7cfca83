// Small text utilities shared by every room.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// "61.2 GiB", "512 B": binary units, one decimal.
std::string format_bytes(int64_t bytes);
// "3h12m", "4m05s", "12s", "1.4s".
std::string format_duration(double seconds);
// "12.3M", "318k": decimal units.
std::string format_count(double count);

// "[2, 64, 96]".
std::string format_shape(std::span<const int64_t> shape);

// The candidate with the smallest edit distance, or "" when none is near (more than a third of its letters differ).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// `, did you mean "x"?` or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

bool has_suffix(std::string_view text, std::string_view suffix);

// The code point that starts at text[at], which must exist; moves `at` behind it. None: not well-formed UTF-8 (overlong
// forms, surrogates and anything above U+10FFFF are not), `at` is then of no use.
std::optional<uint32_t> next_code_point(std::string_view text, size_t& at);
// Well-formed UTF-8 throughout.
bool is_utf8(std::string_view text);

// Printable form of untrusted text for a message: control and non-ASCII bytes escaped, cut after `limit` bytes.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace mw
