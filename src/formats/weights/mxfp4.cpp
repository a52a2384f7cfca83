#include "formats/weights/mxfp4.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr int64_t kScaleBlock = 32;  // elements that share a scale
constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

void check_bytes(const SafetensorsLocation& at, const std::vector<int64_t>& shape) {
  if (at.entry->dtype == "U8" && at.entry->shape == shape) return;
  fail(Exit::data,
       fmt::format("{}: tensor \"{}\" is {} {}, expected U8 {}", at.file->path(), at.entry->name, at.entry->dtype,
                   format_shape(at.entry->shape), format_shape(shape)),
       kOtherWeights);
}

float value_of(unsigned nibble, unsigned scale) {
  const float value = std::ldexp(kMagnitudes[nibble & 7], static_cast<int>(scale) - 127);
  return (nibble & 8) != 0 ? -value : value;
}

}  // namespace

std::string mxfp4_blocks_name(const std::string& tensor) { return tensor + "_blocks"; }
std::string mxfp4_scales_name(const std::string& tensor) { return tensor + "_scales"; }

void check_mxfp4(const SafetensorsSet& files, const std::string& tensor, const std::vector<int64_t>& shape) {
  const SafetensorsLocation blocks = files.require(mxfp4_blocks_name(tensor));
  if (shape.back() % kScaleBlock != 0)
    fail(Exit::data,
         fmt::format("{}: tensor \"{}\" has rows of {} elements, which are no blocks of {}", blocks.file->path(),
                     blocks.entry->name, shape.back(), kScaleBlock),
         "use the config.json of these weights, or convert them to BF16");
  std::vector<int64_t> expected = shape;
  expected.back() /= kScaleBlock;
  check_bytes(files.require(mxfp4_scales_name(tensor)), expected);
  expected.push_back(kScaleBlock / 2);
  check_bytes(blocks, expected);
}

void read_mxfp4(const SafetensorsSet& files, const std::string& tensor, int64_t first, std::span<float> out) {
  const SafetensorsLocation blocks = files.require(mxfp4_blocks_name(tensor)),
                            scales = files.require(mxfp4_scales_name(tensor));
  const auto nibbles = blocks.file->data(*blocks.entry), exponents = scales.file->data(*scales.entry);
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t at = static_cast<size_t>(first) + i;
    const auto pair = std::to_integer<unsigned>(nibbles[at / 2]);
    out[i] = value_of(at % 2 == 0 ? pair : pair >> 4, std::to_integer<unsigned>(exponents[at / kScaleBlock]));
  }
}

}  // namespace mw
