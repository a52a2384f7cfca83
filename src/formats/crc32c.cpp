#include "formats/crc32c.h"

#include <array>

namespace mw {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace mw
