#include "formats/io/crc32.h"

#include <array>

namespace mw {
namespace {

using Table = std::array<uint32_t, 256>;

constexpr Table make_table(uint32_t reflected_polynomial) {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? reflected_polynomial : 0u);
    table[byte] = crc;
  }
  return table;
}

constexpr Table kCastagnoli = make_table(0x82f63b78), kIeee = make_table(0xedb88320);

uint32_t checksum(const Table& table, std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ table[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) { return checksum(kCastagnoli, bytes); }
uint32_t crc32_ieee(std::span<const std::byte> bytes) { return checksum(kIeee, bytes); }

}  // namespace mw
