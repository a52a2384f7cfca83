// PNG encoder for small images, without compression; and base64.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mw {

using Color = std::array<uint8_t, 3>;

// `pixels` holds width x height indices into `palette`, of at most 256 colors, row by row from the top.
std::string encode_png(int width, int height, std::span<const uint8_t> pixels, std::span<const Color> palette);

std::string encode_base64(const std::string& bytes);

}  // namespace mw
