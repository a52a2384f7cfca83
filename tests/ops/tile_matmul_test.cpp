// Packing and loops of ops/cpu/tile_matmul.h with a matrix unit in plain C++, so that they are tested on any CPU.
#include "ops/cpu/tile_matmul.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/rng.h"

namespace mw::cpu {
namespace {

std::atomic<int> threads_inside{0};

void run_block(const TileBlock& p) {
  for (int64_t r = 0; r < kTile * p.row_tiles; ++r)
    for (int64_t j = 0; j < kTileBlock; ++j) {
      float sum = p.add ? p.c[r * p.c_row + j] : 0;
      for (int64_t s = 0; s < p.steps; ++s)
        for (int64_t k = 0; k < kTileBlock; ++k) {
          const bf16 a = p.a[(s * kTileBlock + r) * kTileBlock + k];
          const bf16 b = p.b[((s * 2 + j / kTile) * kTile + k / 2) * kTileBlock + j % kTile * 2 + k % 2];
          sum += to_float(a) * to_float(b);
        }
      p.c[r * p.c_row + j] = sum;
    }
}

void pair_rows(const bf16* square, int64_t row, bf16* to) {
  for (int64_t i = 0; i < kTileBlock; ++i)
    for (int64_t j = 0; j < kTileBlock; ++j)
      to[(j / kTile * kTile + i / 2) * kTileBlock + j % kTile * 2 + i % 2] = square[i * row + j];
}

void transpose(const bf16* square, int64_t row, bf16* to) {
  for (int64_t i = 0; i < kTileBlock; ++i)
    for (int64_t j = 0; j < kTileBlock; ++j) to[j * kTileBlock + i] = square[i * row + j];
}

void round_rows(const float* from, int64_t from_row, bf16* to, int64_t to_row, int64_t rows, bool) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < kTileBlock; ++j) to[i * to_row + j] = to_bf16(from[i * from_row + j]);
}

const TileUnit kLoops{[] { ++threads_inside; }, run_block, [] { --threads_inside; }, pair_rows, transpose, round_rows};

// Small whole numbers: sums are exact, so that results can be compared bit for bit.
std::vector<bf16> make_rows(int64_t count, uint64_t seed) {
  std::vector<bf16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = to_bf16(static_cast<float>((i * 7 + seed * 3 + i / 11) % 9) - 4);
  return values;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

enum class Kind { forward, d_input, d_weight };

struct Shape {
  int64_t height, n, k;
};

class TileMatmul : public testing::TestWithParam<Shape> {
 protected:
  Stream stream{2};
  std::vector<Line> scratch = std::vector<Line>(size_t{1} << 18);

  void SetUp() override { stream.workspace().attach(scratch.data(), scratch.size() * sizeof(Line)); }
  void TearDown() override { EXPECT_EQ(threads_inside, 0); }

  // The product of one kind by tiles, and by a plain sum. shuffled: rows of operands and results behind an index.
  void check(Kind kind, DType out, bool add, bool shuffled) {
    const auto [height, n, k] = GetParam();
    const bool forward = kind == Kind::forward, d_weight = kind == Kind::d_weight;
    const int64_t gap = 5, a_cols = forward ? k : n, stride = a_cols + gap;
    const std::vector<bf16> a = make_rows(height * stride, 1), b = make_rows(height * k, 2), w16 = make_rows(n * k, 3);
    std::vector<float> w(w16.size());
    for (size_t i = 0; i < w.size(); ++i) w[i] = to_float(w16[i]);
    const int64_t bytes = packed_weight_bytes(n, k, true);
    std::vector<bf16> packed_forward(w.size() + 64 * static_cast<size_t>(n + k + 64)), packed_backward(packed_forward);
    const TensorView values(w.data(), DType::f32, {n, k});
    pack_tiles(
        stream, kLoops,
        {n, k, values, {packed_forward.data(), DType::u8, {bytes}}, {packed_backward.data(), DType::u8, {bytes}}});
    std::vector<int32_t> order(static_cast<size_t>(height));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(order.size() - 1 - i);
    const int32_t* index = shuffled ? order.data() : nullptr;
    const auto row_of = [&](int64_t r) { return index ? index[r] : r; };
    const int64_t rows = d_weight ? n : height, cols = forward ? n : k, depth = d_weight ? height : a_cols;
    std::vector<float> c(static_cast<size_t>(rows * cols), 2.0f);
    if (d_weight)
      multiply_transposed_by_tiles(stream, kLoops, {a.data(), stride, index}, {b.data(), k, nullptr}, height, n, k,
                                   c.data(), add);
    else
      multiply_by_tiles(stream, kLoops, {a.data(), stride, index}, height,
                        (forward ? packed_forward : packed_backward).data(), depth, cols,
                        {c.data(), out, cols, index, add});
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        float sum = add ? 2.0f : 0.0f;
        for (int64_t s = 0; s < depth; ++s)
          sum += d_weight ? to_float(a[static_cast<size_t>(row_of(s) * stride + i)]) *
                                to_float(b[static_cast<size_t>(s * k + j)])
                          : to_float(a[static_cast<size_t>(row_of(i) * stride + s)]) *
                                w[static_cast<size_t>(forward ? j * k + s : s * k + j)];
        const auto at = static_cast<size_t>((d_weight ? i : row_of(i)) * cols + j);
        if (out == DType::f32) ASSERT_EQ(c[at], sum) << i << ", " << j;
        else ASSERT_EQ(reinterpret_cast<const bf16*>(c.data())[at].bits, to_bf16(sum).bits) << i << ", " << j;
      }
  }
};

TEST_P(TileMatmul, MultipliesRowsByAWeight) {
  check(Kind::forward, DType::f32, false, false);
  check(Kind::forward, DType::f32, true, false);
  check(Kind::forward, DType::bf16, false, false);
  check(Kind::forward, DType::bf16, false, true);
}

TEST_P(TileMatmul, MultipliesGradientsByAWeight) {
  check(Kind::d_input, DType::f32, false, true);
  check(Kind::d_input, DType::f32, true, false);
  check(Kind::d_input, DType::bf16, false, false);
}

TEST_P(TileMatmul, SumsWeightGradients) {
  check(Kind::d_weight, DType::f32, false, false);
  check(Kind::d_weight, DType::f32, true, false);
  check(Kind::d_weight, DType::f32, true, true);
}

// AMX itself is tested by the tests of ops/matmul.h, on CPUs that have it; what prepares its operands, on any with the
// vectors that it needs.
TEST(AmxUnit, PreparesOperandsLikeLoops) {
  std::ifstream cpu_info("/proc/cpuinfo");
  const std::string flags((std::istreambuf_iterator<char>(cpu_info)), {});
  if (!amx_unit() || flags.find(" avx512bw") == std::string::npos || flags.find(" avx512_bf16") == std::string::npos)
    GTEST_SKIP() << "a CPU without AVX-512 for bf16";
  constexpr int64_t kRow = 41, kValues = kTileBlock * kTileBlock;
  const std::vector<bf16> square = make_rows(kTileBlock * kRow, 5);
  alignas(64) bf16 turned[2][kValues], paired[2][kValues];
  kLoops.transpose(square.data(), kRow, turned[0]);
  amx_unit()->transpose(square.data(), kRow, turned[1]);
  kLoops.pair_rows(square.data(), kRow, paired[0]);
  amx_unit()->pair_rows(square.data(), kRow, paired[1]);
  std::vector<float> values(kTileBlock * kRow);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(1.0f + static_cast<float>(i) / 1000, static_cast<int>(i % 40) - 20);
  alignas(64) bf16 rounded[3][kValues] = {};
  kLoops.round(values.data(), kRow, rounded[0], kTileBlock, kTileBlock, false);
  amx_unit()->round(values.data(), kRow, rounded[1], kTileBlock, kTileBlock, false);
  amx_unit()->round(values.data(), kRow, rounded[2], kTileBlock, kTileBlock, true);
  for (size_t i = 0; i < kValues; ++i) {
    ASSERT_EQ(turned[0][i].bits, turned[1][i].bits) << i;
    ASSERT_EQ(paired[0][i].bits, paired[1][i].bits) << i;
    ASSERT_EQ(rounded[0][i].bits, rounded[1][i].bits) << i;
    ASSERT_EQ(rounded[0][i].bits, rounded[2][i].bits) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TileMatmul,
                         testing::Values(Shape{64, 64, 64}, Shape{17, 48, 32}, Shape{32, 33, 65}, Shape{128, 1, 1},
                                         Shape{1024, 40, 70}, Shape{513, 320, 96}, Shape{161, 16, 3000},
                                         Shape{1, 1200, 64}));

}  // namespace
}  // namespace mw::cpu
