#include "core/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace mw {
namespace {

// Counters at a time: loops over them become vector instructions. All arithmetic is IEEE's, without fused products
// (CMakeLists.txt), so that the bits are the same in blocks of any size and on any processor.
constexpr size_t kBlock = 64;
template <class T, size_t n>
using Lanes = std::array<T, n>;

template <size_t n>
std::array<Lanes<uint32_t, n>, 4> words_of(RngKey key, uint64_t first) {
  std::array<Lanes<uint32_t, n>, 4> c{};
  for (size_t i = 0; i < n; ++i) {
    c[0][i] = static_cast<uint32_t>(first + i);
    c[1][i] = static_cast<uint32_t>((first + i) >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c[0][i];
      const uint64_t b = uint64_t{0xCD9E8D57u} * c[2][i];
      c[0][i] = static_cast<uint32_t>(b >> 32) ^ c[1][i] ^ key.low;
      c[1][i] = static_cast<uint32_t>(b);
      c[2][i] = static_cast<uint32_t>(a >> 32) ^ c[3][i] ^ key.high;
      c[3][i] = static_cast<uint32_t>(a);
    }
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
  return c;
}

// The sum of c[k] x^k.
template <size_t n>
[[gnu::always_inline]] inline double polynomial(double x, const std::array<double, n>& c) {
  double sum = c[n - 1];
  for (size_t k = n - 1; k-- > 0;) sum = sum * x + c[k];
  return sum;
}

// Natural logarithm of (word + 1) / 2^32, which is in (0, 1]. word + 1 = m 2^k with m in [sqrt(1/2), sqrt(2)), and
// log m = 2 artanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline double log_of_word(uint32_t word) {
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDull, kExponent = 0xFFF0000000000000ull;
  constexpr std::array<double, 11> kArtanh = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                                              2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  // By way of 32-bit signed integers, which all vector units convert.
  const double value = static_cast<double>(static_cast<int32_t>(word ^ 0x80000000u)) + 2147483649.0;
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t k = (bits - kRootOfHalf) & kExponent;
  const auto m = std::bit_cast<double>(bits - k);
  const double power = std::bit_cast<double>((k >> 52) | 0x4330000000000000ull) - 0x1p52;
  const double s = (m - 1) / (m + 1);
  return (power - 32) * 0.693147180559945309417 + s * polynomial(s * s, kArtanh);
}

struct Point {
  double cosine, sine;
};

// The point on the unit circle at word / 2^32 of a turn: by Taylor series at most an eighth of a turn from the nearest
// axis.
[[gnu::always_inline]] inline Point point_of_word(uint32_t word) {
  constexpr double kTurn = 6.28318530717958647693;
  constexpr std::array<double, 9> kSine = {1.0,
                                           -1.0 / 6,
                                           1.0 / 120,
                                           -1.0 / 5040,
                                           1.0 / 362880,
                                           -1.0 / 39916800,
                                           1.0 / 6227020800,
                                           -1.0 / 1307674368000,
                                           1.0 / 355687428096000},
                                  kCosine = {1.0,
                                             -1.0 / 2,
                                             1.0 / 24,
                                             -1.0 / 720,
                                             1.0 / 40320,
                                             -1.0 / 3628800,
                                             1.0 / 479001600,
                                             -1.0 / 87178291200,
                                             1.0 / 20922789888000};
  const uint32_t axis = (word + 0x20000000u) >> 30;
  const double x = static_cast<double>(static_cast<int32_t>(word - (axis << 30))) * (kTurn * 0x1p-32), square = x * x;
  const double sine = x * polynomial(square, kSine), cosine = polynomial(square, kCosine);
  const bool swapped = (axis & 1) != 0;
  const double along = swapped ? sine : cosine, across = swapped ? cosine : sine;
  return {axis == 1 || axis == 2 ? -along : along, axis >= 2 ? -across : across};
}

// Elements 4 * first, 4 * first + 1, ...: Box-Muller on the words of each counter, two by two.
template <size_t n>
std::array<float, 4 * n> normals_of(RngKey key, uint64_t first) {
  const auto words = words_of<n>(key, first);
  std::array<Lanes<float, n>, 4> z;
  for (size_t pair = 0; pair < 4; pair += 2)
    for (size_t i = 0; i < n; ++i) {
      const double radius = std::sqrt(-2.0 * log_of_word(words[pair][i]));
      const Point point = point_of_word(words[pair + 1][i]);
      z[pair][i] = static_cast<float>(radius * point.cosine);
      z[pair + 1][i] = static_cast<float>(radius * point.sine);
    }
  std::array<float, 4 * n> out;
  for (size_t i = 0; i < n; ++i)
    for (size_t lane = 0; lane < 4; ++lane) out[4 * i + lane] = z[lane][i];
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
  const auto words = words_of<1>(key, counter);
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

float uniform_at(RngKey key, uint64_t index) {
  return static_cast<float>(philox(key, index / 4)[index % 4] >> 8) * 0x1p-24f;
}

uint64_t bits_at(RngKey key, uint64_t index) {
  const auto words = philox(key, index);
  return uint64_t{words[0]} | (uint64_t{words[1]} << 32);
}

float normal_at(RngKey key, uint64_t index) { return normals_of<1>(key, index / 4)[index % 4]; }

void fill_normal(RngKey key, uint64_t begin, std::span<float> out) {
  for (size_t done = 0; done < out.size();) {
    const uint64_t index = begin + done;
    const std::array<float, 4 * kBlock> block = normals_of<kBlock>(key, index / 4);
    const size_t count = std::min(out.size() - done, block.size() - index % 4);
    std::copy_n(block.begin() + static_cast<std::ptrdiff_t>(index % 4), count,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
  }
}

}  // namespace mw
