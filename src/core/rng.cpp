#include "core/rng.h"

#include <cmath>

namespace mw {
namespace {

std::array<float, 4> normals_of(RngKey key, uint64_t counter) {
  const auto words = philox(key, counter);
  std::array<float, 4> out{};
  for (size_t pair = 0; pair < 4; pair += 2) {
    const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm stays finite
    const double angle = 2.0 * 3.14159265358979323846 * static_cast<double>(words[pair + 1]) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    out[pair] = static_cast<float>(radius * std::cos(angle));
    out[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

}  // namespace

RngKey make_rng_key(uint64_t seed, std::string_view name) {
  // FNV-1a over the name, then a SplitMix64 finish with the seed: nearby seeds and names give unrelated keys.
  uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  uint64_t z = hash + seed * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

std::array<uint32_t, 4> philox(RngKey key, uint64_t counter) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = key.low, k1 = key.high;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

float uniform_at(RngKey key, uint64_t index) {
  return static_cast<float>(philox(key, index / 4)[index % 4] >> 8) * 0x1p-24f;
}

uint64_t bits_at(RngKey key, uint64_t index) {
  const auto words = philox(key, index);
  return uint64_t{words[0]} | (uint64_t{words[1]} << 32);
}

float normal_at(RngKey key, uint64_t index) { return normals_of(key, index / 4)[index % 4]; }

void fill_normal(RngKey key, uint64_t begin, std::span<float> out) {
  size_t i = 0;
  while (i < out.size()) {
    const uint64_t index = begin + i;
    const std::array<float, 4> four = normals_of(key, index / 4);
    for (size_t lane = index % 4; lane < 4 && i < out.size(); ++lane) out[i++] = four[lane];
  }
}

}  // namespace mw
