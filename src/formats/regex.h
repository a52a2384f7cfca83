// The regular expressions of tokenizers over UTF-8 text: Unicode properties and look-ahead, in the dialect that Hugging
// Face's library reads (Oniguruma's).
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

// Immutable; for use by many threads at once.
class Regex {
 public:
  // `literal`: the pattern is plain text. Errors: Exit::data naming `where` and the place of a mistake;
  // Exit::unsupported for sets inside sets, and in a build without PCRE2.
  Regex(std::string_view pattern, bool literal, const std::string& where);
  // Replaces `spans` with the matches, from left to right, none overlapping. `text` must be UTF-8. Errors: Exit::data
  // when the pattern takes too many steps.
  void find_all(std::string_view text, std::vector<TextSpan>& spans) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace mw
