// Tokens that are looked for in the text itself, before any other step: special tokens and added words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // not empty
  bool strip_left = false;   // takes the white space before it along
  bool strip_right = false;  // and after it
  bool normalized = true;    // is looked for in normalized text
};

// A part of a text: an added token, or what lies between.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  // -1: no added token
};

// Immutable; for use by many threads at once.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  // Cuts `text` at the tokens: from left to right, at each place the longest. No part is empty.
  std::vector<TextPart> cut(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;
  std::vector<AddedToken> tokens_;                        // those with the same first byte side by side, longest first
  std::array<std::pair<size_t, size_t>, 256> by_byte_{};  // range of tokens_ for a first byte
};

}  // namespace mw
