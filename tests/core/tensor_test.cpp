#include "core/tensor.h"

#include <numeric>
#include <vector>

#include "formats/helpers.h"

namespace mw::test {
namespace {

TEST(TensorView, KnowsItsSizes) {
  float x = 0;
  const TensorView t(&x, DType::f32, {2, 3, 4});
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_EQ(t.cols(), 4);
  EXPECT_EQ(t.rows(), 6);
  EXPECT_EQ(t.describe(), "f32[2, 3, 4]");
  EXPECT_EQ(TensorView(&x, DType::bf16, {5}).rows(), 1);
  EXPECT_EQ(TensorView(&x, DType::bf16, {5}).bytes(), 10);
  EXPECT_EQ(TensorView(&x, DType::i64, {0, 7}).bytes(), 0);
  EXPECT_EQ(TensorView(&x, DType::f32, std::initializer_list<int64_t>{}).numel(), 1);  // a scalar
  error_of([&] { TensorView(&x, DType::f32, {1, 1, 1, 1, 1}); }, Exit::internal);
}

TEST(TensorView, SlicesAxisZero) {
  std::vector<int32_t> data(24);
  std::iota(data.begin(), data.end(), 0);
  const TensorView t(data.data(), DType::i32, {4, 3, 2});
  const TensorView s = t.slice(1, 2);
  EXPECT_EQ(s.describe(), "i32[2, 3, 2]");
  EXPECT_EQ(s.as<int32_t>()[0], 6);
  EXPECT_EQ(s.slice(1, 1).as<int32_t>()[0], 12);
  EXPECT_EQ(t.slice(4, 0).numel(), 0);  // at the very end
  EXPECT_EQ(t.at(3).describe(), "i32[3, 2]");
  EXPECT_EQ(t.at(3).as<int32_t>()[0], 18);
  EXPECT_EQ(t.at(3).shape, TensorView(nullptr, DType::i32, {3, 2}).shape);
  EXPECT_EQ(t.at(3).at(2).at(1).as<int32_t>()[0], 23);
  EXPECT_EQ(t.at(3).at(2).at(1).rank, 0);
  for (const auto& [begin, count] : {std::pair{-1, 1}, {0, 5}, {4, 1}, {2, -1}, {3, 2}})
    error_of([&, b = begin, c = count] { t.slice(b, c); }, Exit::internal);
  error_of([&] { t.at(4); }, Exit::internal);
  error_of([&] { t.at(0).at(0).at(0).at(0); }, Exit::internal);
}

TEST(TensorView, SlicesEmptyTensors) {
  const TensorView rows(nullptr, DType::f32, {0, 8});
  EXPECT_EQ(rows.slice(0, 0).numel(), 0);
  error_of([&] { rows.slice(0, 1); }, Exit::internal);
}

TEST(TensorView, Reshapes) {
  std::vector<float> data(24);
  const TensorView t(data.data(), DType::f32, {4, 6});
  EXPECT_EQ(t.reshape({2, 2, 3, 2}).describe(), "f32[2, 2, 3, 2]");
  EXPECT_EQ(t.reshape({24}).data, t.data);
  EXPECT_EQ(t.flat().describe(), "f32[24]");
  EXPECT_TRUE(contains(error_of([&] { t.reshape({5, 5}); }, Exit::internal), "f32[4, 6]"));
}

TEST(TensorView, GivesItsFrontUnderAnotherShape) {
  std::vector<float> data(24);
  const TensorView t(data.data(), DType::f32, {4, 6});
  EXPECT_EQ(take_front(t, {5, 2}).describe(), "f32[5, 2]");
  EXPECT_EQ(take_front(t, {24}).data, t.data);
  EXPECT_TRUE(contains(error_of([&] { take_front(t, {5, 5}); }, Exit::internal), "f32[4, 6]"));
}

TEST(TensorView, ChecksTheElementType) {
  bf16 x{};
  const TensorView t(&x, DType::bf16, {1});
  EXPECT_EQ(t.as<bf16>(), &x);
  EXPECT_TRUE(contains(error_of([&] { t.as<float>(); }, Exit::internal), "bf16 tensor read as f32"));
}

}  // namespace
}  // namespace mw::test
