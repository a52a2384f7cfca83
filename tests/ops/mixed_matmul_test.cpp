#include "ops/mixed_matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/op_case.h"

namespace mw::test {
namespace {

using References = std::map<std::string, std::vector<double>>;

struct Shape {
  int64_t m, n, k;
};
// The last two are cut into chunks: by the rows of parts that a GPU takes at once, and by the rows it converts.
constexpr Shape kShapes[] = {{0, 33, 47},   {1, 33, 47},    {17, 96, 40},     {600, 33, 47},
                             {600, 96, 40}, {513, 128, 64}, {2800, 1024, 16}, {4200, 3, 5}};

// Magnitudes of the operands. lift: both are of order 2^lift. tilt: along the axis that is summed over, one is 2^tilt
// times that at even indices and 2^-tilt at odd ones, the other the reverse, so that all products count alike.
struct Range {
  int tilt, lift;
};
constexpr Range kFarRanges[] = {{60, 0}, {0, -50}, {0, 50}};

CaseTensor make_operand(const char* name, int64_t rows, int64_t cols, DType dtype, int summed_axis, Range range) {
  CaseTensor tensor = random_tensor(name, {rows, cols}, dtype);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const bool even = (summed_axis == 0 ? i / cols : i % cols) % 2 == 0;
    float& value = tensor.values[static_cast<size_t>(i)];
    value = std::ldexp(value, range.lift + (even ? range.tilt : -range.tilt));
  }
  return tensor;
}
Range reversed(Range range) { return {-range.tilt, range.lift}; }

Weight weight_of(const Owned& w) { return {w.view.dim(0), w.view.dim(1), w.view, {}, {}}; }

// out[i, j] = start[i, j] + sum over s of a(i, s) b(s, j).
template <class A, class B>
std::vector<double> sum_products(int64_t rows, int64_t cols, int64_t depth, std::vector<double> start, A a, B b) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t s = 0; s < depth; ++s)
      for (int64_t j = 0; j < cols; ++j)
        start[static_cast<size_t>(i * cols + j)] += static_cast<double>(a(i, s)) * static_cast<double>(b(s, j));
  return start;
}
std::vector<double> widened(const CaseTensor& tensor) { return {tensor.values.begin(), tensor.values.end()}; }

std::string name_case(const char* name, Shape shape, Range range) {
  return fmt::format("{}/{}x{}x{}/tilt {}/lift {}", name, shape.m, shape.n, shape.k, range.tilt, range.lift);
}

OpCase make_forward_case(Shape shape, Range range) {
  const auto [m, n, k] = shape;
  OpCase c;
  c.name = name_case("mixed_matmul", shape, range);
  c.inputs["x"] = make_operand("x", m, k, DType::bf16, 1, range);
  c.inputs["w"] = make_operand("w", n, k, DType::f32, 1, reversed(range));
  c.forward = [=](Stream& stream, const Tensors& in) {
    const Owned x = to_operand(in.at("x")), w = to_operand(in.at("w")), y = make_output(DType::f32, {m, n});
    mixed_matmul(stream, x.view, weight_of(w), y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.reference = [=](const Tensors& in) {
    const auto &x = in.at("x").values, &w = in.at("w").values;
    return References{{"y", sum_products(
                                m, n, k, std::vector<double>(static_cast<size_t>(m * n)),
                                [&](int64_t i, int64_t s) { return x[static_cast<size_t>(i * k + s)]; },
                                [&](int64_t s, int64_t j) { return w[static_cast<size_t>(j * k + s)]; })}};
  };
  c.tolerance = 1e-5;
  c.reason = "fp32 products and sums";
  return c;
}

OpCase make_d_input_case(Shape shape, Range range) {
  const auto [m, n, k] = shape;
  OpCase c;
  c.name = name_case("mixed_matmul_d_input", shape, range);
  c.inputs["dy"] = make_operand("dy", m, n, DType::f32, 1, range);
  c.inputs["w"] = make_operand("w", n, k, DType::f32, 0, reversed(range));
  c.inputs["dx"] = CaseTensor{{m, k}, std::vector<float>(static_cast<size_t>(m * k)), DType::bf16};
  c.forward = [=](Stream& stream, const Tensors& in) {
    const Owned dy = to_operand(in.at("dy")), w = to_operand(in.at("w")), dx = to_operand(in.at("dx"));
    mixed_matmul_d_input(stream, dy.view, weight_of(w), dx.view);
    return Tensors{{"dx", to_case_tensor(dx)}};
  };
  c.reference = [=](const Tensors& in) {
    const auto &dy = in.at("dy").values, &w = in.at("w").values;
    return References{{"dx", sum_products(
                                 m, k, n, widened(in.at("dx")),
                                 [&](int64_t i, int64_t s) { return dy[static_cast<size_t>(i * n + s)]; },
                                 [&](int64_t s, int64_t j) { return w[static_cast<size_t>(s * k + j)]; })}};
  };
  // What the product is added to is nearly its opposite: the result is what rounding to bf16 loses of the product.
  const std::vector<double> product = c.reference(c.inputs).at("dx");
  for (size_t i = 0; i < product.size(); ++i)
    c.inputs["dx"].values[i] = to_float(to_bf16(static_cast<float>(-product[i])));
  c.tolerance = 0.05;
  c.reason = "products right to 2^-15, in terms of 2^-9 of their sum";
  return c;
}

OpCase make_d_weight_case(Shape shape, Range range) {
  const auto [m, n, k] = shape;
  OpCase c;
  c.name = name_case("mixed_matmul_d_weight", shape, range);
  c.inputs["dy"] = make_operand("dy", m, n, DType::f32, 0, range);
  c.inputs["x"] = make_operand("x", m, k, DType::bf16, 0, reversed(range));
  c.inputs["dw"] = random_tensor("dw", {n, k}, DType::f32, std::ldexp(1.0f, 2 * range.lift));
  c.forward = [=](Stream& stream, const Tensors& in) {
    const Owned dy = to_operand(in.at("dy")), x = to_operand(in.at("x")), dw = to_operand(in.at("dw"));
    mixed_matmul_d_weight(stream, dy.view, x.view, dw.view);
    return Tensors{{"dw", to_case_tensor(dw)}};
  };
  c.reference = [=](const Tensors& in) {
    const auto &dy = in.at("dy").values, &x = in.at("x").values;
    return References{{"dw", sum_products(
                                 n, k, m, widened(in.at("dw")),
                                 [&](int64_t i, int64_t s) { return dy[static_cast<size_t>(s * n + i)]; },
                                 [&](int64_t s, int64_t j) { return x[static_cast<size_t>(s * k + j)]; })}};
  };
  c.tolerance = m > 4096 ? 2e-5 : 1e-5;
  c.reason = "fp32 products and sums, here of up to 4200 terms";
  return c;
}

// The same with operands rounded to bf16 must be far off, or the tolerance says nothing.
void expect_bf16_to_fail(const OpCase& c) {
  Tensors rounded = c.inputs;
  for (auto& [name, tensor] : rounded)
    for (float& value : tensor.values) value = to_float(to_bf16(value));
  const References plain = c.reference(rounded);
  for (const auto& [name, exact] : c.reference(c.inputs)) {
    const std::vector<float> values(plain.at(name).begin(), plain.at(name).end());
    EXPECT_GT(largest_error(values, exact), 10 * c.tolerance) << c.name << ": " << name;
  }
}

void check_all(Range range) {
  for (const Shape shape : kShapes) {
    const int64_t bytes = mixed_matmul_workspace_bytes(shape.m, shape.n, shape.k, device_kind());
    TestStream tight(2, static_cast<size_t>(bytes));
    for (const OpCase& c :
         {make_forward_case(shape, range), make_d_input_case(shape, range), make_d_weight_case(shape, range)}) {
      check_forward(c, tight.stream);
      if (shape.m > 0) expect_bf16_to_fail(c);
    }
  }
}

TEST(MixedMatmul, HasThePrecisionOfFp32) { check_all({0, 0}); }
TEST(MixedMatmul, TakesOperandsOfAnyMagnitude) {
  for (const Range range : kFarRanges) check_all(range);
}
TEST(MixedMatmul, TakesAnyAddress) {
  const OffBorders scope;
  check_all({0, 0});
}

// Enough rows for every processor of a GPU: one tile of columns, half a tile, and several with an odd row tile beside.
TEST(MixedMatmul, FillsAGpu) {
  // The last shape has more steps than a kernel has tiles on their way.
  for (const Shape shape : {Shape{14900, 100, 24}, {14900, 52, 72}, {3700, 388, 24}, {11400, 52, 456}})
    for (const Range range : {Range{0, 0}, kFarRanges[0]}) {
      if (shape.k > 100 && range.tilt != 0) continue;
      TestStream tight(2, static_cast<size_t>(mixed_matmul_workspace_bytes(shape.m, shape.n, shape.k, device_kind())));
      const OpCase c = make_forward_case(shape, range);
      check_forward(c, tight.stream);
      // Only the kernel for Hopper needs no scratch for products. The shapes are for the processors of an H100 or H200.
      if (!on_gpu() || describe(tight.stream.device()).find("compute 9.0, 132 processors") == std::string::npos)
        continue;
      EXPECT_LT(static_cast<int64_t>(tight.stream.workspace().peak()), shape.m * shape.n * size_of(DType::f32))
          << c.name;
    }
}

constexpr int64_t kSide = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
const float kValues[kSide] = {0.0f,
                              1.0f,
                              0x1.000002p0f,
                              -0x1.fffffep0f,
                              0x1.fffffep-60f,
                              0x1.010101p60f,
                              0x1.ff0001p-1f,
                              kLargest,
                              -kLargest,
                              0x1.ff0001p127f,  // rounds to infinity in bf16
                              -0x1.fep127f,
                              3.14159274f,
                              kInfinity,
                              -kInfinity,
                              std::bit_cast<float>(0x7f800001u),  // a NaN whose upper half is an infinity's
                              -std::bit_cast<float>(0x7fffffffu)};

// Row 0 or column 0 holds kValues, the rest is normal.
CaseTensor make_special(int axis) {
  CaseTensor tensor = random_tensor("special", {kSide, kSide}, DType::f32);
  for (size_t i = 0; i < kSide; ++i) tensor.values[axis == 0 ? i : i * kSide] = kValues[i];
  return tensor;
}
// All zeros but for `value` in row 0 or column 0.
CaseTensor make_selector(DType dtype, int axis, float value) {
  CaseTensor tensor{{kSide, kSide}, std::vector<float>(kSide * kSide), dtype};
  for (size_t i = 0; i < kSide; ++i) tensor.values[axis == 0 ? i : i * kSide] = value;
  return tensor;
}
CaseTensor make_zeros(DType dtype) { return make_selector(dtype, 0, 0.0f); }

void expect_same(float got, float expected) {
  EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << got << " for " << expected;
}

TEST(MixedMatmul, KeepsEveryBitOfAValue) {
  TestStream test;
  const Owned w = to_operand(make_special(1)), x = to_operand(make_selector(DType::bf16, 1, 1.0f)),
              y = make_output(DType::f32, {kSide, kSide});
  mixed_matmul(test.stream, x.view, weight_of(w), y.view);
  const Owned dy = to_operand(make_special(0)), rows = to_operand(make_selector(DType::bf16, 0, 1.0f)),
              dw = to_operand(make_zeros(DType::f32));
  mixed_matmul_d_weight(test.stream, dy.view, rows.view, dw.view);
  const CaseTensor ys = to_case_tensor(y), dws = to_case_tensor(dw);
  for (size_t i = 0; i < kSide * kSide; ++i) {
    expect_same(ys.values[i], kValues[i % kSide]);
    expect_same(dws.values[i], kValues[i / kSide]);
  }
}

TEST(MixedMatmul, PassesInfiniteActivations) {
  TestStream test;
  const CaseTensor finite = random_tensor("finite", {kSide, kSide}, DType::bf16);  // all but one part are zero
  CaseTensor values = finite;
  values.dtype = DType::f32;
  const Owned w = to_operand(values), x = to_operand(make_selector(DType::bf16, 1, kInfinity)),
              y = make_output(DType::f32, {kSide, kSide});
  mixed_matmul(test.stream, x.view, weight_of(w), y.view);
  const Owned rows = to_operand(make_selector(DType::bf16, 0, -kInfinity)), dw = to_operand(make_zeros(DType::f32));
  mixed_matmul_d_weight(test.stream, w.view, rows.view, dw.view);
  const CaseTensor ys = to_case_tensor(y), dws = to_case_tensor(dw);
  for (size_t i = 0; i < kSide * kSide; ++i) {
    EXPECT_EQ(ys.values[i], std::copysign(kInfinity, finite.values[i % kSide * kSide]));
    EXPECT_EQ(dws.values[i], std::copysign(kInfinity, -finite.values[i / kSide]));
  }
}

TEST(MixedMatmul, GradientOfTheInputKeepsWhatIsNotFinite) {
  TestStream test;
  const Owned w = to_operand(make_special(0)), dy = to_operand(make_selector(DType::f32, 1, 1.0f)),
              dx = to_operand(make_zeros(DType::bf16));
  mixed_matmul_d_input(test.stream, dy.view, weight_of(w), dx.view);
  const CaseTensor got = to_case_tensor(dx);
  for (size_t i = 0; i < kSide * kSide; ++i) {
    const float value = kValues[i % kSide];
    if (std::isfinite(to_float(to_bf16(value)))) {
      EXPECT_NEAR(got.values[i], value, std::abs(value) * 0x1.01p-8f);
    } else {
      EXPECT_FALSE(std::isfinite(got.values[i])) << value;
    }
  }
}

// Neighbours of 256 in bf16 are two apart: a product that is rounded before it is added ends on the other side.
TEST(MixedMatmul, GradientOfTheInputIsRoundedOnce) {
  TestStream test;
  const Owned dy = to_operand(make_selector(DType::f32, 1, 1.0f)),
              dx = to_operand(make_selector(DType::bf16, 0, 256.0f));
  CaseTensor values = make_zeros(DType::f32);
  for (size_t i = 0; i < kSide; ++i) values.values[i] = i % 2 == 0 ? 1.003f : 0.999f;
  const Owned w = to_operand(values);
  mixed_matmul_d_input(test.stream, dy.view, weight_of(w), dx.view);
  const CaseTensor got = to_case_tensor(dx);
  for (size_t i = 0; i < kSide; ++i) EXPECT_EQ(got.values[i], i % 2 == 0 ? 258.0f : 256.0f);
}

}  // namespace
}  // namespace mw::test
