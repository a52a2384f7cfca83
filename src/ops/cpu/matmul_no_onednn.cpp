// Panel products without a matrix library: fp32, blocked for the caches, threads over strips of columns.
#include <algorithm>
#include <cstring>

#include "ops/cpu/loops.h"
#include "ops/cpu/panel_product.h"
#include "ops/cpu/tile_product.h"

namespace mw::cpu {
namespace {

constexpr int64_t kCols = 64;    // columns of a strip of b
constexpr int64_t kDepth = 256;  // summands taken at once: a strip of b then has 64 KiB
constexpr int64_t kRows = tile::kRows;
static_assert(kCols % (2 * tile::kLanes) == 0);

// A matrix with element (i, j) at data[i * row + j * col].
struct Strided {
  const float* data;
  int64_t row, col;
};

// c[m, n] (=|+=) a[m, depth] b[depth, n], c row-major.
void multiply(Stream& stream, int64_t m, int64_t n, int64_t depth, Strided a, Strided b, float* c, Store store) {
  for_blocks(stream, n, kCols, [&](int64_t col_begin, int64_t col_end) {
    const int64_t cols = col_end - col_begin;
    alignas(64) float b_strip[kDepth * kCols];
    alignas(64) float a_rows[kDepth * kRows];
    alignas(64) float sums[kRows * kCols];
    for (int64_t first = 0; first < depth; first += kDepth) {
      const int64_t count = std::min(kDepth, depth - first);
      if (cols < kCols) std::memset(b_strip, 0, sizeof b_strip);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < cols; ++j)
          b_strip[i * kCols + j] = b.data[(first + i) * b.row + (col_begin + j) * b.col];
      const bool add = store == Store::accumulate || first > 0;
      for (int64_t top = 0; top < m; top += kRows) {
        const int64_t rows = std::min(kRows, m - top);
        if (rows < kRows) std::memset(a_rows, 0, sizeof a_rows);
        for (int64_t i = 0; i < count; ++i)
          for (int64_t r = 0; r < rows; ++r) a_rows[i * kRows + r] = a.data[(top + r) * a.row + (first + i) * a.col];
        tile::product<false>(kRows, kCols, a_rows, 1, kRows, b_strip, kCols, sums, kCols, [&](int64_t) {
          return tile::Part{0, 0, count};
        });
        for (int64_t r = 0; r < rows; ++r) {
          float* to = c + (top + r) * n + col_begin;
          const float* from = sums + r * kCols;
          if (add)
            for (int64_t j = 0; j < cols; ++j) to[j] += from[j];
          else std::memcpy(to, from, static_cast<size_t>(cols) * sizeof(float));
        }
      }
    }
  });
}

}  // namespace

MatmulTraits matmul_traits() { return {false, false, "OpenMP loops"}; }

double measure_library_gflops(DType, int64_t, bool, int, int) { return 0; }

// Forward: the transpose [K, N], whose rows are read in runs; backward: the values as they are.
void pack_for_panels(Stream& stream, const Weight& weight) {
  const int64_t n = weight.n, k = weight.k;
  const float* values = weight.values.as<float>();
  auto* forward = static_cast<float*>(weight.packed_forward.data);
  auto* backward = static_cast<float*>(weight.packed_backward.data);
  for_blocks(stream, n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t j = 0; j < k; ++j)
      for (int64_t i = begin; i < end; ++i) forward[j * n + i] = values[i * k + j];
    std::memcpy(backward + begin * k, values + begin * k, static_cast<size_t>((end - begin) * k) * sizeof(float));
  });
}

void run_panel(Stream& stream, const PanelProduct& product, const void* a, const void* b, void* c) {
  const auto [kind, height, n, k, in, out, packed, store, a_row] = product;
  MW_CHECK(in == DType::f32 && out == DType::f32, "a product of {} panels", name_of(in));
  const auto* left = static_cast<const float*>(a);
  const auto* right = static_cast<const float*>(b);
  auto* to = static_cast<float*>(c);
  switch (kind) {
    case ProductKind::forward:
      multiply(stream, height, n, k, {left, a_row, 1}, packed ? Strided{right, n, 1} : Strided{right, 1, k}, to, store);
      break;
    case ProductKind::d_input: multiply(stream, height, k, n, {left, a_row, 1}, {right, k, 1}, to, store); break;
    case ProductKind::d_weight: multiply(stream, n, k, height, {left, 1, a_row}, {right, k, 1}, to, store); break;
  }
}

}  // namespace mw::cpu
