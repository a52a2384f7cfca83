// Exact sums of squares on GPUs: the very source, run on the CPU.
#include "ops/gpu/exact_squares.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

}  // namespace
}  // namespace mw::gpu
