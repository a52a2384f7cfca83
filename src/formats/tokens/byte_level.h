// The alphabet of byte-level BPE, which maps each of the 256 bytes to one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mw {

// '!' to '~', U+00A1 to U+00AC and U+00AE to U+00FF map to themselves; the other bytes, in order, map to U+0100 and up.
uint32_t byte_level_character(uint8_t byte);

// Inverse: the bytes of a text in this alphabet; none when it contains another character or is not UTF-8.
std::optional<std::string> byte_level_bytes(std::string_view text);

}  // namespace mw
