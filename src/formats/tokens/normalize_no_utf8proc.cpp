#include <algorithm>

#include "base/error.h"
#include "formats/tokens/normalize.h"

namespace mw {

std::string normalize(std::string_view text, Normalization) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    fail(Exit::unsupported, "this tokenizer needs utf8proc for text that is not ASCII, but this build has none",
         "install libutf8proc-dev and build again");
  return std::string(text);
}

}  // namespace mw
