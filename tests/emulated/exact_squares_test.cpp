// Exact sums of squares on GPUs: the very source, run on the CPU.
#include "ops/gpu/exact_squares.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

double sum_of(std::span<const TensorView> tensors, int64_t piece) {
  emulated::EmulatedStream emulated(1 << 12);
  return gpu::sum_squares_exactly(emulated.stream, tensors, piece).value();
}

template <class T>
std::vector<T> drawn(int64_t count) {
  const RngKey key = make_rng_key(3, "squares");
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal_at(key, static_cast<uint64_t>(i)) * std::exp2(i % 40 - 20));
    if constexpr (std::is_same_v<T, float>) values.push_back(value);
    else values.push_back(to_bf16(value));
  }
  return values;
}

// The last piece may be shorter.
template <class T>
void check(DType dtype, int64_t count, int64_t piece) {
  std::vector<T> values = drawn<T>(count);
  ExactSum expected;
  for (int64_t begin = 0; begin < count; begin += piece) {
    double lanes[32] = {};
    for (int64_t i = begin; i < std::min(count, begin + piece); ++i) {
      const auto value = static_cast<double>(to_float(values[static_cast<size_t>(i)]));
      lanes[(i - begin) % 32] += value * value;
    }
    double sum = lanes[0];
    for (int lane = 1; lane < 32; ++lane) sum += lanes[lane];
    expected.add(sum);
  }
  const TensorView whole(values.data(), dtype, {count});
  EXPECT_EQ(sum_of({&whole, 1}, piece), expected.value()) << count << " in pieces of " << piece;
  const int64_t half = count / piece / 2 * piece;
  const std::vector<TensorView> parts = {whole.slice(half, count - half), whole.slice(0, half)};
  EXPECT_EQ(sum_of(parts, piece), expected.value());
}

TEST(ExactSquares, SumPiecesInTensorsOfAnyOrder) {
  // 9003 pieces are more than all blocks have warps.
  for (const int64_t piece : {1, 6, 32, 100}) {
    check<float>(DType::f32, piece == 1 ? 9003 : 21 * piece + 3, piece);
    check<bf16>(DType::bf16, 700, piece);
  }
}

TEST(ExactSquares, AreNothingWithoutTensorsAndNoNumberBesideOne) {
  EXPECT_EQ(sum_of({}, 16), 0);
  std::vector<float> values = {1, std::numeric_limits<float>::infinity(), 2};
  const TensorView view(values.data(), DType::f32, {3});
  EXPECT_TRUE(std::isnan(sum_of({&view, 1}, 2)));
}

// Values of tiles as a lane has them; a second warp of a wave has zeros.
template <class U>
void add_as_products_do(unsigned long long* sets, const float* values, int64_t k) {
  constexpr int kTiles = 3, kSquaresOfLane = kSquareRows * kSquareColumns / kSquareLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
  SquareAdder<U> adder{sets};
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int i = 0; i < kSquaresOfLane; i += 2) {
      const float* pair = values + (lane / 4 + i % 4 / 2 * 8) * k + tile * kSquareColumns + i / 4 * 8 + lane % 4 * 2;
      const bool zeros = threadIdx.x >= kSquareLanes;
      adder.add(zeros ? 0 : pair[0], zeros ? 0 : pair[1]);
    }
    adder.end_tile();
  }
  adder.finish();
}

// Products and the kernel that reads add the same bits.
TEST(SquareTiles, AreSummedInOneOrder) {
  constexpr int64_t kWidth = 3 * kSquareColumns, kCount = SquareSums::kSets * ExactSum::kLimbs;
  const std::vector<float> values = drawn<float>(kSquareRows * kWidth);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    emulated::EmulatedStream emulated(1 << 16);
    std::vector<int64_t> limbs(kCount);
    auto* sets = reinterpret_cast<unsigned long long*>(limbs.data());
    const auto kernel = dtype == DType::f32 ? add_as_products_do<float> : add_as_products_do<bf16>;
    launch(emulated.stream, kernel, 1, 2 * kSquareLanes, 0, sets, values.data(), kWidth);
    SquareSums added;
    added.limbs = TensorView(limbs.data(), DType::i64, {kCount});
    std::vector<float> stored = values;
    std::vector<bf16> narrow;
    for (const float value : values) narrow.push_back(to_bf16(value));
    const TensorView all(dtype == DType::f32 ? static_cast<void*>(stored.data()) : narrow.data(), dtype,
                         {1, kSquareRows, kWidth});
    const double expected = gpu::sum_squares_by_tile(emulated.stream, {&all, 1}, {}).value();
    EXPECT_GT(expected, 0);
    EXPECT_EQ(gpu::sum_squares_by_tile(emulated.stream, {}, added).value(), expected);
  }
}

// Odd and even widths, more tiles than all blocks have warps, and the total of two.
TEST(SquareTiles, AgreeWithDoubles) {
  for (const auto& [e, n, k] : {std::tuple<int64_t, int64_t, int64_t>{2, 17, 65}, {3, 40, 130}, {1, 9003 * 16, 2}}) {
    std::vector<float> values = drawn<float>(e * n * k);
    emulated::EmulatedStream emulated(1 << 16);
    const TensorView all(values.data(), DType::f32, {e, n, k});
    double expected = 0;
    for (const float value : values) expected += double{value} * double{value};
    EXPECT_NEAR(gpu::sum_squares_by_tile(emulated.stream, {&all, 1}, {}).value(), expected, 1e-6 * expected);
    const std::vector<TensorView> twice = {all, all};
    EXPECT_NEAR(gpu::sum_squares_by_tile(emulated.stream, twice, {}).value(), 2 * expected, 2e-6 * expected);
  }
}

}  // namespace
}  // namespace mw::gpu
