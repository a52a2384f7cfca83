// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mw {

uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace mw
