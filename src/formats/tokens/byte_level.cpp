#include "formats/tokens/byte_level.h"

#include <array>

#include "base/text.h"

namespace mw {
namespace {

// The byte of each character; -1: no character of the alphabet.
using Alphabet = std::array<int, 0x200>;

constexpr Alphabet make_alphabet() {
  Alphabet bytes{};
  for (int& b : bytes) b = -1;
  size_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable_byte = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[printable_byte ? static_cast<size_t>(b) : next++] = b;
  }
  return bytes;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const std::optional<uint32_t> code = next_code_point(text, at);
    if (!code || *code >= kAlphabet.size() || kAlphabet[*code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet[*code]);
  }
  return bytes;
}

}  // namespace mw
