// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): element i of stream (seed, name) is a pure function
// of (seed, name, i), so that it does not depend on the layout, the thread count or the order of evaluation.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace mw {

struct RngKey {
  uint32_t low = 0, high = 0;
};

// The key of a named stream under a seed.
RngKey make_rng_key(uint64_t seed, std::string_view name);

// Four independent 32-bit words for a counter.
std::array<uint32_t, 4> philox(RngKey key, uint64_t counter);

// Uniform in [0, 1) for element `index` (24 bits).
float uniform_at(RngKey key, uint64_t index);
// 64 random bits for element `index`.
uint64_t bits_at(RngKey key, uint64_t index);
// Standard normal for element `index` (Box-Muller on the words of one counter).
float normal_at(RngKey key, uint64_t index);
// Fills `out` with normal_at for elements begin, begin + 1, ...; faster than one call per element.
void fill_normal(RngKey key, uint64_t begin, std::span<float> out);

}  // namespace mw
