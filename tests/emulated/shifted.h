// Elements in memory that begin at a chosen distance from a border of 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mw::emulated {

template <class T>
class Shifted {
 public:
  // All bytes are zero. shift: in elements.
  explicit Shifted(int64_t count, int64_t shift)
      : lines_(static_cast<size_t>(count + shift) * sizeof(T) / sizeof(Line) + 1), shift_(shift) {}
  T* data() { return reinterpret_cast<T*>(lines_.data()) + shift_; }
  const T* data() const { return reinterpret_cast<const T*>(lines_.data()) + shift_; }

 private:
  struct alignas(16) Line {
    std::byte bytes[16];
  };
  std::vector<Line> lines_;
  int64_t shift_;
};

}  // namespace mw::emulated
