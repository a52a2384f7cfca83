// Converting reads: the few element types that weights and token ids come in.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"

namespace mw {
namespace {

// The first byte of the elements asked for. Tensors may lie unaligned, so elements are loaded by memcpy.
const std::byte* locate(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first, size_t count) {
  const int64_t available = entry.element_count();
  MW_CHECK(first >= 0 && first <= available && count <= static_cast<size_t>(available - first),
           "{}: tensor \"{}\" has {} elements, {} from {} were asked for", file.path(), entry.name, available, count,
           first);
  return file.data(entry).data() + first * safetensors_dtype_bits(entry.dtype) / 8;
}

template <class T, class Out, class Convert>
void convert_all(const std::byte* from, std::span<Out> out, Convert convert, size_t stride = 1) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * stride * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t word = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13);
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// E4M3 without infinities: 4 bits of exponent (bias 7), 3 of mantissa, NaN where both are all ones.
float e4m3_to_float(uint8_t bits) {
  const int exponent = (bits >> 3) & 0xf, mantissa = bits & 0x7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

[[noreturn]] void fail_dtype(const SafetensorsFile& file, const SafetensorsEntry& entry, const char* expected) {
  fail(Exit::data,
       fmt::format("{}: tensor \"{}\": expected dtype {}, got {}", file.path(), printable(entry.name), expected,
                   entry.dtype),
       "convert the tensor to one of these types");
}

}  // namespace

void read_as_f32(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first_element,
                 std::span<float> out, int64_t stride) {
  const auto step = static_cast<size_t>(stride);
  const std::byte* from = locate(file, entry, first_element, out.empty() ? 0 : (out.size() - 1) * step + 1);
  if (out.empty()) return;
  if (entry.dtype == "F32") {
    convert_all<float>(
        from, out, [](float x) { return x; }, step);
  } else if (entry.dtype == "BF16") {
    convert_all<bf16>(
        from, out, [](bf16 x) { return to_float(x); }, step);
  } else if (entry.dtype == "F16") {
    convert_all<uint16_t>(from, out, half_to_float, step);
  } else if (entry.dtype == "F8_E4M3") {
    convert_all<uint8_t>(from, out, e4m3_to_float, step);
  } else {
    fail_dtype(file, entry, "F32, BF16, F16 or F8_E4M3");
  }
}

void read_as_i64(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first_element,
                 std::span<int64_t> out) {
  const std::byte* from = locate(file, entry, first_element, out.size());
  if (out.empty()) return;
  if (entry.dtype == "I64") {
    std::memcpy(out.data(), from, out.size_bytes());
  } else if (entry.dtype == "I32") {
    convert_all<int32_t>(from, out, [](int32_t x) { return int64_t{x}; });
  } else {
    fail_dtype(file, entry, "I64 or I32");
  }
}

}  // namespace mw
