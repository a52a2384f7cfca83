// 32-bit cyclic redundancy checks (CRC).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mw {

uint32_t crc32c(std::span<const std::byte> bytes);      // Castagnoli's polynomial: TFRecord files
uint32_t crc32_ieee(std::span<const std::byte> bytes);  // the polynomial of Ethernet: PNG files

}  // namespace mw
