#include "formats/report/png.h"

#include <algorithm>

#include "base/error.h"
#include "formats/io/crc32.h"

namespace mw {
namespace {

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(crc32_ieee(std::as_bytes(std::span(body))));
}

// A zlib stream of stored blocks.
std::string store(const std::string& data) {
  constexpr size_t kLargestBlock = 65535;
  std::string out = "\x78\x01";
  for (size_t begin = 0; begin < data.size() || begin == 0; begin += kLargestBlock) {
    const size_t size = std::min(kLargestBlock, data.size() - begin);
    out += static_cast<char>(begin + size == data.size() ? 1 : 0);  // the last one
    for (const size_t number : {size, ~size}) out += {static_cast<char>(number), static_cast<char>(number >> 8)};
    out.append(data, begin, size);
  }
  uint32_t low = 1, high = 0;  // Adler-32
  for (const char c : data) {
    low = (low + static_cast<unsigned char>(c)) % 65521;
    high = (high + low) % 65521;
  }
  return out + big_endian(high << 16 | low);
}

}  // namespace

std::string encode_png(int width, int height, std::span<const uint8_t> pixels, std::span<const Color> palette) {
  MW_CHECK(width > 0 && height > 0 && std::ssize(pixels) == int64_t{width} * height, "an image of {} x {}", width,
           height);
  MW_CHECK(!palette.empty() && palette.size() <= 256, "{} colors", palette.size());
  const std::string kinds = {8, 3, 0, 0, 0};  // 8 bits, palette, deflate, filters by row, not interlaced
  std::string colors, rows;
  for (const Color& color : palette) colors.append(color.begin(), color.end());
  for (int y = 0; y < height; ++y) {
    const auto row = pixels.subspan(static_cast<size_t>(y) * static_cast<size_t>(width), static_cast<size_t>(width));
    rows += '\0';  // no filter
    rows.append(row.begin(), row.end());
  }
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", big_endian(static_cast<uint32_t>(width)) + big_endian(static_cast<uint32_t>(height)) + kinds) +
         chunk("PLTE", colors) + chunk("IDAT", store(rows)) + chunk("IEND", "");
}

std::string encode_base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) three = three << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

}  // namespace mw
