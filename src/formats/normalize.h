// Unicode normalization forms.
#pragma once

#include <string>
#include <string_view>

namespace mw {

enum class Normalization { nfc, nfd, nfkc, nfkd };

// `text`, which must be UTF-8, in that form. Errors: Exit::data when it is not; Exit::unsupported in a build without
// utf8proc, for anything but ASCII.
std::string normalize(std::string_view text, Normalization form);

}  // namespace mw
