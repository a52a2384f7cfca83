// Random numbers as Python's module `random` draws them for a seed below 2^32, so that traces of a Python program can
// be drawn again: the Mersenne twister, seeded by its authors' init_by_array with the seed as the only key.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <random>
#include <utility>

namespace mw::bench {

// A seed sequence in the sense of <random>, for the twister's 624 words.
class PythonSeed {
 public:
  using result_type = uint32_t;
  explicit PythonSeed(uint32_t key) : key_(key) {}
  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto n = static_cast<size_t>(end - begin);
    const auto mixed = [&](size_t i, uint32_t factor) {
      const uint32_t before = begin[i - 1];
      return static_cast<uint32_t>(begin[i]) ^ ((before ^ (before >> 30)) * factor);
    };
    begin[0] = 19650218U;
    for (size_t i = 1; i < n; ++i) {
      const uint32_t before = begin[i - 1];
      begin[i] = 1812433253U * (before ^ (before >> 30)) + static_cast<uint32_t>(i);
    }
    size_t i = 1;
    const auto advance = [&] {
      if (++i < n) return;
      begin[0] = begin[n - 1];
      i = 1;
    };
    for (size_t round = 0; round < n; ++round, advance()) begin[i] = mixed(i, 1664525U) + key_;
    for (size_t round = 1; round < n; ++round, advance()) begin[i] = mixed(i, 1566083941U) - static_cast<uint32_t>(i);
    begin[0] = 0x80000000U;
  }

 private:
  uint32_t key_;
};

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    PythonSeed key(seed);
    engine_.seed(key);
  }
  double random() {
    const auto high = static_cast<double>(engine_() >> 5), low = static_cast<double>(engine_() >> 6);
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  double gauss(double sigma) {
    if (next_) return *std::exchange(next_, std::nullopt) * sigma;
    const double angle = random() * 2 * std::numbers::pi, radius = std::sqrt(-2.0 * std::log(1.0 - random()));
    next_ = std::sin(angle) * radius;
    return std::cos(angle) * radius * sigma;
  }
  // Below `end`, which is at least 1.
  uint32_t randrange(uint32_t end) {
    const auto bits = static_cast<unsigned>(std::bit_width(end));
    while (true)
      if (const auto value = static_cast<uint32_t>(engine_() >> (32 - bits)); value < end) return value;
  }

 private:
  std::mt19937 engine_;
  std::optional<double> next_;
};

}  // namespace mw::bench
