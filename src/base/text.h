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
// "1 rank", "2 ranks", "2 micro-batches".
std::string counted(int64_t count, std::string_view noun);

// "[2, 64, 96]".
std::string format_shape(std::span<const int64_t> shape);

// With ASCII letters in lower case.
std::string lower_case(std::string_view text);

// The candidate with the smallest edit distance, case aside, or "" when even that one differs in more than a third of
// its letters. Empty candidates are passed over.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// `, did you mean "x"?` or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// Returns the code point that starts at text[at], which must exist, and moves `at` behind it. Returns none for UTF-8
// that is not well-formed (overlong forms, surrogates, anything above U+10FFFF); `at` is then unspecified.
std::optional<uint32_t> next_code_point(std::string_view text, size_t& at);
// What editors on Windows put before UTF-8.
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
// Whether the whole text is well-formed UTF-8.
bool is_utf8(std::string_view text);

constexpr size_t kReportColumns = 120;  // of reports for people
// Breaks lines with more than `columns` code points at spaces, where a space allows it; what follows a break is
// indented `indent` columns more than the line. keeps_tables: lines with two spaces in a row after their indentation,
// as rows of tables have, stay whole.
std::string wrap_text(std::string_view text, size_t columns, size_t indent, bool keeps_tables = false);

// Printable form of untrusted text for a message: control and non-ASCII bytes escaped, cut after `limit` bytes.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace mw
