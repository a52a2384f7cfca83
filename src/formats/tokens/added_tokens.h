// Added tokens: special tokens and added words, which are found in the text itself before any other tokenization step.
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
  bool strip_left = false;   // also consumes the white space before it
  bool strip_right = false;  // also consumes the white space after it
  bool normalized = true;    // is searched for in the normalized text
  bool special = false;      // a mark, not text
};

// A part of a text: an added token, or the text between two of them.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  // -1: no added token
};

// Immutable; for use by many threads at once.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  // Splits `text` at the added tokens: from left to right, the longest match at each position. No part is empty.
  std::vector<TextPart> cut(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;
  std::vector<AddedToken> tokens_;                        // grouped by first byte, longest first
  std::array<std::pair<size_t, size_t>, 256> by_byte_{};  // range of tokens_ for a first byte
};

}  // namespace mw
