#include "formats/tokens/byte_level.h"

#include <array>

#include "base/text.h"

namespace mw {
namespace {

struct Alphabet {
  std::array<uint32_t, 256> character{};
  std::array<int, 0x200> byte{};  // -1: no character of the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int& b : alphabet.byte) b = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable_byte = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    const uint32_t character = printable_byte ? b : next++;
    alphabet.character[b] = character;
    alphabet.byte[character] = static_cast<int>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

uint32_t byte_level_character(uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const std::optional<uint32_t> code = next_code_point(text, at);
    if (!code || *code >= kAlphabet.byte.size() || kAlphabet.byte[*code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[*code]);
  }
  return bytes;
}

}  // namespace mw
