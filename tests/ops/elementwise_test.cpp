#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<double> to_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

OpCase make_add_case(DType dtype, int64_t count) {
  OpCase op;
  op.name = fmt::format("add/{}/{}", name_of(dtype), count);
  op.inputs["a"] = random_tensor("add.a", {count}, dtype);
  op.inputs["b"] = random_tensor("add.b", {count}, dtype);
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned a = to_operand(inputs.at("a")), b = to_operand(inputs.at("b")), out = make_output(dtype, {count});
    add(stream, a.view, b.view, out.view);
    add(stream, a.view, b.view, a.view);
    return Tensors{{"out", to_case_tensor(out)}, {"in place", to_case_tensor(a)}};
  };
  op.reference = [](const Tensors& inputs) {
    std::vector<double> out = to_doubles(inputs.at("a").values);
    for (size_t i = 0; i < out.size(); ++i) out[i] += static_cast<double>(inputs.at("b").values[i]);
    return std::map<std::string, std::vector<double>>{{"out", out}, {"in place", out}};
  };
  op.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-7;
  op.reason = "one rounding";
  return op;
}

OpCase make_clamp_case(DType dtype, int64_t count) {
  constexpr float kLimit = 0.75f;
  OpCase op;
  op.name = fmt::format("clamp/{}/{}", name_of(dtype), count);
  op.inputs["x"] = random_tensor("clamp.x", {count}, dtype);
  for (float& x : op.inputs["x"].values)  // finite differences must not step over the kink
    if (std::abs(std::abs(x) - kLimit) < 0.01f) x = 0.5f;
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x"));
    clamp(stream, x.view, kLimit, x.view);
    return Tensors{{"out", to_case_tensor(x)}};
  };
  op.backward = [=](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    const Owned x = to_operand(inputs.at("x")), d = to_operand(d_outputs.at("out"));
    clamp_backward(stream, x.view, kLimit, d.view);
    return Tensors{{"x", to_case_tensor(d)}};
  };
  op.reference = [](const Tensors& inputs) {
    std::vector<double> out = to_doubles(inputs.at("x").values);
    for (double& x : out) x = std::min(0.75, std::max(-0.75, x));
    return std::map<std::string, std::vector<double>>{{"out", out}};
  };
  op.tolerance = 0;
  op.gradient_tolerance = 1e-6;
  op.reason = "exact: the limit is a bf16 number";
  return op;
}

OpCase make_convert_case(DType from, DType to, int64_t count) {
  OpCase op;
  op.name = fmt::format("convert/{} to {}/{}", name_of(from), name_of(to), count);
  op.inputs["x"] = random_tensor("convert.x", {count}, from);
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), y = make_output(to, {count});
    convert(stream, x.view, y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  op.reference = [=](const Tensors& inputs) {
    std::vector<double> y;
    for (float x : inputs.at("x").values) y.push_back(to == DType::bf16 ? to_float(to_bf16(x)) : x);
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  op.tolerance = 0;
  op.reason = "round to nearest even is exact";
  return op;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (int64_t count : {0, 1, 7, 8, 37, 2056, 40'001})
    for (DType dtype : {DType::f32, DType::bf16}) {
      cases.push_back(make_add_case(dtype, count));
      for (DType to : {DType::f32, DType::bf16}) cases.push_back(make_convert_case(dtype, to, count));
      cases.push_back(make_clamp_case(dtype, count));
    }
  return cases;
}

TEST(Elementwise, ForwardAgreesWithTheReference) {
  TestStream test;
  for (const OpCase& op : all_cases()) check_forward(op, test.stream);
}

TEST(Elementwise, ClampGradientAgreesWithFiniteDifferences) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16}) check_gradient(make_clamp_case(dtype, 300), test.stream);
}

TEST(Elementwise, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& op : all_cases()) check_forward(op, test.stream);
  for (DType dtype : {DType::f32, DType::bf16}) check_gradient(make_clamp_case(dtype, 301), test.stream);
}

TEST(Elementwise, SpecialNumbersConvertAndClamp) {
  TestStream test;
  const CaseTensor special{{5}, {kInfinity, -kInfinity, NAN, 3.4e38f, -0.0f}, DType::f32};
  const Owned x = to_operand(special), y = make_output(DType::bf16, {5}), z = make_output(DType::f32, {5});
  convert(test.stream, x.view, y.view);
  convert(test.stream, y.view, z.view);
  wait_for_device();
  const float* back = z.view.as<float>();
  EXPECT_EQ(back[0], kInfinity);
  EXPECT_EQ(back[1], -kInfinity);
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(back[3], kInfinity);  // above the largest bf16
  EXPECT_TRUE(std::signbit(back[4]));
  clamp(test.stream, z.view, 2.0f, z.view);
  wait_for_device();
  EXPECT_EQ(back[0], 2.0f);
  EXPECT_EQ(back[1], -2.0f);
  EXPECT_TRUE(std::isnan(back[2]));
}

TEST(Elementwise, FillZero) {
  TestStream test;
  for (int64_t count : {0, 1, 100'003}) {
    const Owned x = make_output(DType::bf16, {count});
    fill_zero(test.stream, x.view);
    for (float value : to_case_tensor(x).values) ASSERT_EQ(value, 0.0f);
  }
}

// Slices of one tensor, of odd and even lengths, with elements between them that must stay.
TEST(Elementwise, FillZerosOfManyTensorsLeavesTheRest) {
  TestStream test;
  const int64_t count = 1'000'000;
  const Owned x = to_operand(CaseTensor{{count}, std::vector<float>(static_cast<size_t>(count), 1.0f)});
  std::vector<TensorView> slices;
  std::vector<float> expected(static_cast<size_t>(count), 1.0f);
  int64_t at = 0;
  for (int i = 0; i < 300; ++i) {
    const int64_t length = i == 150 ? 100'000 : i % 3 == 0 ? 1024 : i;
    slices.push_back(x.view.slice(at, length));
    std::fill_n(expected.begin() + at, length, 0.0f);
    at += length + 4 * (i % 2) + i % 4;
  }
  fill_zeros(test.stream, slices);
  EXPECT_EQ(to_case_tensor(x).values, expected);
}

TEST(Elementwise, SumSquares) {
  for (int64_t count : {0, 1, 1003, 20'000'003}) {
    const CaseTensor values = count < 5000 ? random_tensor("squares", {count}, DType::f32)
                                           : CaseTensor{{count}, std::vector<float>(static_cast<size_t>(count), 0.1f)};
    double expected = 0;
    for (float value : values.values) expected += static_cast<double>(value) * static_cast<double>(value);
    const Owned x = to_operand(values);
    double one_thread = 0;
    for (int threads = 1; threads <= 3; ++threads) {
      TestStream test(threads);
      const double sum = sum_squares(test.stream, {&x.view, 1});
      EXPECT_NEAR(sum, expected, 1e-9 * expected) << count;
      if (threads == 1) one_thread = sum;
      EXPECT_EQ(sum, one_thread) << count << " on " << threads << " threads";
    }
  }
}

// More tensors than one launch takes, some empty, some off the borders of 16 bytes.
TEST(Elementwise, SumSquaresOfAList) {
  TestStream test;
  EXPECT_EQ(sum_squares(test.stream, {}), 0.0);
  const CaseTensor values = random_tensor("list", {40'000}, DType::f32);
  const Owned all = to_operand(values);
  std::vector<TensorView> pieces;
  double expected = 0;
  int64_t begin = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t count = i == 150 ? 30'000 : i * i % 23;
    pieces.push_back(all.view.slice(begin, count));
    begin += count;
  }
  for (size_t i = 0; i < static_cast<size_t>(begin); ++i)
    expected += static_cast<double>(values.values[i]) * static_cast<double>(values.values[i]);
  const double sum = sum_squares(test.stream, pieces);
  EXPECT_NEAR(sum, expected, 1e-9 * expected);
  EXPECT_EQ(sum_squares(test.stream, pieces), sum);
}

TEST(Elementwise, SumSquaresOfBothFloatTypes) {
  TestStream test;
  const CaseTensor wide = random_tensor("wide", {5001}, DType::f32),
                   narrow = random_tensor("narrow", {70'003}, DType::bf16);
  const Owned a = to_operand(wide), b = to_operand(narrow);
  double expected = 0;
  for (const CaseTensor* values : {&wide, &narrow})
    for (const float value : values->values) expected += static_cast<double>(value) * static_cast<double>(value);
  const TensorView list[] = {b.view.slice(0, 1), a.view, b.view.slice(1, 70'002)};  // one off the borders of a pack
  EXPECT_NEAR(sum_squares(test.stream, list), expected, 1e-9 * expected);
}

// Pieces may lie in any tensor, and in any order; a tensor may begin anywhere.
TEST(Elementwise, SumSquaresExactlyWhereverPiecesLie) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t piece : {1, 6, 64, 4096}) {
      const int64_t pieces = piece == 4096 ? 37 : 211;
      const CaseTensor values = random_tensor("exact", {pieces * piece}, dtype);
      const Owned x = to_operand(values);
      double expected = 0;
      for (const float value : values.values) expected += static_cast<double>(value) * static_cast<double>(value);
      double whole = 0;
      for (int threads = 1; threads <= 3; ++threads) {
        TestStream test(threads);
        const double sum = sum_squares_exactly(test.stream, {&x.view, 1}, piece).value();
        EXPECT_NEAR(sum, expected, 1e-9 * expected);
        if (threads == 1) whole = sum;
        EXPECT_EQ(sum, whole);
      }
      std::vector<TensorView> parts;
      for (int64_t i = pieces; i > 0;) {
        const int64_t count = std::min<int64_t>(i, 1 + i % 7);
        parts.push_back(x.view.slice((i - count) * piece, count * piece));
        i -= count;
      }
      TestStream test(2);
      EXPECT_EQ(sum_squares_exactly(test.stream, parts, piece).value(), whole);
      // Elsewhere in memory, off the borders of vectors.
      CaseTensor shifted{{pieces * piece + 1}, {0.0f}};
      shifted.values.insert(shifted.values.end(), values.values.begin(), values.values.end());
      shifted.dtype = dtype;
      const Owned y = to_operand(shifted);
      const TensorView moved = y.view.slice(1, pieces * piece);
      EXPECT_EQ(sum_squares_exactly(test.stream, {&moved, 1}, piece).value(), whole);
    }
  TestStream test;
  EXPECT_EQ(sum_squares_exactly(test.stream, {}, 16).value(), 0.0);
}

TEST(Elementwise, AllFinite) {
  TestStream test;
  EXPECT_TRUE(all_finite(test.stream, make_output(DType::f32, {0}).view));
  const Owned x = to_operand(random_tensor("finite", {50'001}, DType::f32));
  float* values = x.view.as<float>();
  values[7] = std::numeric_limits<float>::max();
  EXPECT_TRUE(all_finite(test.stream, x.view));
  for (int64_t i : {0, 20'000, 50'000})
    for (float bad : {NAN, -NAN, kInfinity, -kInfinity}) {
      const float good = values[i];
      values[i] = bad;
      EXPECT_FALSE(all_finite(test.stream, x.view)) << i << " " << bad;
      values[i] = good;
    }
  EXPECT_TRUE(all_finite(test.stream, x.view));
  const Owned narrow = to_operand(random_tensor("finite", {5001}, DType::bf16));
  EXPECT_TRUE(all_finite(test.stream, narrow.view));
  narrow.view.as<bf16>()[5000] = to_bf16(kInfinity);
  EXPECT_FALSE(all_finite(test.stream, narrow.view));
}

TEST(Elementwise, MismatchesAreRefused) {
  TestStream test;
  const Owned a = make_output(DType::f32, {4}), b = make_output(DType::bf16, {4}), c = make_output(DType::f32, {5});
  EXPECT_THROW(add(test.stream, a.view, b.view, a.view), Error);
  EXPECT_THROW(add(test.stream, a.view, a.view, c.view), Error);
  EXPECT_THROW(convert(test.stream, c.view, b.view), Error);
  const Owned integers = make_output(DType::i32, {4});
  EXPECT_THROW(clamp(test.stream, integers.view, 1.0f, integers.view), Error);
}

}  // namespace
}  // namespace mw::test
