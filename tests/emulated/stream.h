// A stream of the CPU with scratch for the sources of GPU operators.
#pragma once

#include <cstddef>
#include <vector>

#include "core/stream.h"

namespace mw::emulated {

struct EmulatedStream {
  explicit EmulatedStream(int64_t scratch_bytes) : memory(static_cast<size_t>(scratch_bytes) / sizeof(Line) + 1) {
    stream.workspace().attach(memory.data(), memory.size() * sizeof(Line));
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
  Stream stream{1};
};

}  // namespace mw::emulated
