// Matrix products of small fp32 tiles in scratch, for operators that compute tile by tile (attention). Written with the
// vector types of GCC and Clang: one source for AVX-512, AVX2, SSE and NEON.
#pragma once

#include <cstdint>
#include <utility>

namespace mw::cpu::tile {

// Lanes of the widest vector register of the target, and the rows of a micro-kernel: kRows x 2 sums stay in registers.
constexpr int kLanes = __BIGGEST_ALIGNMENT__ / 4;
constexpr int kRows = kLanes == 16 ? 8 : 4;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), may_alias));

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The part of a product that is needed for a block of kRows rows of the result: columns from `col_begin` on, summands
// [k_begin, k_end).
struct Part {
  int64_t col_begin, k_begin, k_end;
};

// One kRows x (kVecs * kLanes) block of c. `a` is read with strides, so it may be a transposed tile.
template <int kVecs, bool kAccumulate>
inline void product_block(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_k, float* c,
                          int64_t c_row, int64_t k_begin, int64_t k_end) {
  Vec sum[kRows][kVecs] = {};
  a += k_begin * a_k;
  b += k_begin * b_k;
  for (int64_t k = k_begin; k < k_end; ++k, a += a_k, b += b_k) {
    Vec b_k_n[kVecs];
    for (int v = 0; v < kVecs; ++v) b_k_n[v] = *reinterpret_cast<const Vec*>(b + v * kLanes);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVecs; ++v) sum[r][v] += a[r * a_row] * b_k_n[v];
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) {
      Vec& out = *reinterpret_cast<Vec*>(c + r * c_row + v * kLanes);
      if constexpr (kAccumulate) out += sum[r][v];
      else out = sum[r][v];
    }
}

// c[r, n] (=|+=) sum over k of a[r, k] b[k, n] for r < rows, n < cols. b and c: 64-byte aligned, rows of a multiple of
// kLanes floats; `a` has element (r, k) at r * a_row + k * a_k. rows is rounded up to kRows and cols to kLanes: the
// tiles must reach that far. part_of(r) returns the part to compute for rows [r, r + kRows); columns outside it are not
// written.
template <bool kAccumulate, class PartOf>
inline void product(int64_t rows, int64_t cols, const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_k,
                    float* c, int64_t c_row, PartOf part_of) {
  for (int64_t n = 0; n < cols; n += 2 * kLanes) {
    const bool pair = n + kLanes < cols;
    for (int64_t r = 0; r < rows; r += kRows) {
      const Part part = part_of(r);
      if (part.col_begin >= n + (pair ? 2 : 1) * kLanes) continue;
      if (pair)
        product_block<2, kAccumulate>(a + r * a_row, a_row, a_k, b + n, b_k, c + r * c_row + n, c_row, part.k_begin,
                                      part.k_end);
      else
        product_block<1, kAccumulate>(a + r * a_row, a_row, a_k, b + n, b_k, c + r * c_row + n, c_row, part.k_begin,
                                      part.k_end);
    }
  }
}

// Interleaves the elements of the lower (kHalf = 0) or upper halves of two registers.
template <int kHalf, int... kLane>
inline Vec interleave(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, (kLane / 2 + kHalf * (kLanes / 2) + (kLane % 2) * kLanes)...);
}

// y[c, r] = x[r, c]. rows and cols are multiples of kLanes; both tiles are aligned as in product().
inline void transpose(int64_t rows, int64_t cols, const float* x, int64_t x_row, float* y, int64_t y_row) {
  constexpr auto kAllLanes = std::make_integer_sequence<int, kLanes>();
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < cols; c += kLanes) {
      Vec block[kLanes], mixed[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = *reinterpret_cast<const Vec*>(x + (r + i) * x_row + c);
      // log2(kLanes) perfect shuffles of the rows transpose a square block.
      for (int step = 1; step < kLanes; step *= 2) {
        for (int i = 0; i < kLanes / 2; ++i) {
          mixed[2 * i] = interleave<0>(block[i], block[i + kLanes / 2], kAllLanes);
          mixed[2 * i + 1] = interleave<1>(block[i], block[i + kLanes / 2], kAllLanes);
        }
        for (int i = 0; i < kLanes; ++i) block[i] = mixed[i];
      }
      for (int i = 0; i < kLanes; ++i) *reinterpret_cast<Vec*>(y + (c + i) * y_row + r) = block[i];
    }
}

}  // namespace mw::cpu::tile
