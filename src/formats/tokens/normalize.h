// Unicode normalization forms.
#pragma once

#include <string>
#include <string_view>

namespace mw {

enum class Normalization { nfc, nfd, nfkc, nfkd };

// Converts `text`, which must be UTF-8, to that form. Errors: Exit::data when it is not UTF-8; Exit::unsupported for
// non-ASCII text in a build without utf8proc.
std::string normalize(std::string_view text, Normalization form);

}  // namespace mw
