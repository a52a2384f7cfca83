// XXH3 64-bit checksums: they detect damage and mix-ups, not deliberate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mw {

// The XXH3 64-bit hash with seed 0. The same on every machine.
uint64_t xxh3(std::span<const std::byte> bytes);
uint64_t xxh3(std::string_view text);

// The same as 16 lower-case hex digits.
std::string xxh3_hex(std::span<const std::byte> bytes);

// Incremental hash: equal to xxh3 of the concatenated pieces, however they are split.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void update(std::span<const std::byte> bytes);
  uint64_t digest() const;  // of all bytes so far; more may follow
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mw
