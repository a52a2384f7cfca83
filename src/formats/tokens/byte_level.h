// The alphabet of byte-level BPE, which maps each of the 256 bytes to one printable character.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mw {

// The bytes of a text in this alphabet; none when it contains another character or is not UTF-8. '!' to '~', U+00A1 to
// U+00AC and U+00AE to U+00FF stand for themselves, and U+0100 and up for the other bytes, in order.
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace mw
