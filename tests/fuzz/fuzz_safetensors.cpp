// Any bytes as a safetensors file, as its header, and as a folder's index: accepted or mw::Error, nothing else.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/weights/safetensors.h"

namespace {

template <class Work>
void attempt(Work work) {
  try {
    work();
  } catch (const mw::Error& e) {
    if (e.code() != mw::Exit::data) std::abort();
  }
}

void parse(std::string_view file) {
  attempt([&] {
    const auto bytes = std::as_bytes(std::span(file));
    const mw::SafetensorsHeader header = mw::parse_safetensors_header(bytes, "fuzz");
    unsigned sum = 0;
    for (const mw::SafetensorsEntry& entry : header.entries) {
      if (mw::safetensors_bytes(entry.dtype, entry.shape) != entry.end - entry.begin) std::abort();
      for (int64_t i = entry.begin; i < entry.end; ++i) {
        sum += std::to_integer<unsigned>(bytes[static_cast<size_t>(header.buffer_offset + i)]);
      }
    }
    volatile unsigned keep = sum;
    (void)keep;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  parse(input);
  attempt([&] { mw::parse_safetensors_index(input, "fuzz"); });
  if (size > 0) {  // a header with the right length, before a buffer of 0 to 255 bytes
    const uint64_t length = size - 1;
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    file += input.substr(1);
    file.append(data[0], 'x');
    parse(file);
  }
  return 0;
}
