// A stream of the CPU with scratch for the sources of GPU operators. Whatever floats are read there are NaNs.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "core/stream.h"

namespace mw::emulated {

struct EmulatedStream {
  explicit EmulatedStream(int64_t scratch_bytes) : memory(static_cast<size_t>(scratch_bytes) / sizeof(Line) + 1) {
    std::memset(memory.data(), 0xff, memory.size() * sizeof(Line));
    stream.workspace().attach(memory.data(), memory.size() * sizeof(Line));
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
  Stream stream{1};
};

}  // namespace mw::emulated
