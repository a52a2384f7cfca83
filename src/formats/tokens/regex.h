// Regular expressions of tokenizers over UTF-8 text: Unicode properties and look-ahead, in the dialect of Hugging
// Face's tokenizers (Oniguruma).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

struct TextSpan {
  size_t begin = 0, end = 0;  // bytes
};

// Immutable and thread-safe.
class Regex {
 public:
  // `literal`: the pattern is plain text. Errors: Exit::data naming `where` and the position of a syntax error;
  // Exit::unsupported for nested character classes, and in a build without PCRE2.
  Regex(std::string_view pattern, bool literal, const std::string& where);
  // Replaces `spans` with the matches, from left to right, without overlaps. `text` must be UTF-8. Errors: Exit::data
  // when matching takes too many steps.
  void find_all(std::string_view text, std::vector<TextSpan>& spans) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace mw
