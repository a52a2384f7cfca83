// Incremental detokenization while tokens are generated: emits only whole UTF-8 characters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokens/tokenizer.h"

namespace mw {

// Appends `text` to `out`, with U+FFFD for each byte that is not part of well-formed UTF-8. Returns the number of bytes
// replaced.
int64_t repair_utf8(std::string_view text, std::string& out);

// The concatenation of all pieces is decode() of all ids, as valid UTF-8.
class TextStream {
 public:
  // `context`: ids whose text was already printed, such as those of a prompt. The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const int32_t> context = {});
  // Returns the text that `id` completes; "" where it ends within a character. An id without a token gives U+FFFD.
  std::string add(int32_t id);
  // Returns the bytes that add() held back because their character was incomplete.
  std::string finish();

 private:
  std::string take(const std::string& text, size_t end);  // text[shown_, end) as valid UTF-8

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;  // the last ones: enough for decode() to see what stands before a new one
  size_t shown_ = 0;          // bytes of decode(ids_) that came out
};

}  // namespace mw
