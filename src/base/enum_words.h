// How run files, command lines and messages spell the values of an enumeration: one table for each, beside it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

template <class Enum>
struct EnumWord {
  Enum value;
  const char* word;
};

// The table of Enum, an array: every value that a user may choose, once, in the order of messages and documents.
template <class Enum>
inline constexpr auto kEnumWords = nullptr;  // without one

template <class Enum>
constexpr const char* word_of(Enum value) {
  for (const EnumWord<Enum>& entry : kEnumWords<Enum>)
    if (entry.value == value) return entry.word;
  return "?";  // not in the table
}

// The value that `word` stands for, if any.
template <class Enum>
constexpr std::optional<Enum> enum_of(std::string_view word) {
  for (const EnumWord<Enum>& entry : kEnumWords<Enum>)
    if (entry.word == word) return entry.value;
  return std::nullopt;
}

template <class Enum>
std::vector<std::string> enum_words() {
  std::vector<std::string> words;
  for (const EnumWord<Enum>& entry : kEnumWords<Enum>) words.emplace_back(entry.word);
  return words;
}

}  // namespace mw
