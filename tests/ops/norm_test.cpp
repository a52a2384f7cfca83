#include "ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/elementwise.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr float kEps = 1e-5f;

struct Saved {
  Owned y, rstd;
};

Saved run_forward(Stream& stream, const Tensors& inputs) {
  const Owned x = to_operand(inputs.at("x")), gain = to_operand(inputs.at("gain"));
  Saved saved{make_output(x.view.dtype, inputs.at("x").shape), make_output(DType::f32, {x.view.rows()})};
  rms_norm(stream, x.view, gain.view, kEps, saved.y.view, saved.rstd.view);
  return saved;
}

// Gradients of x and gain; d_gain starts at zero.
Tensors run_backward(Stream& stream, const Tensors& inputs, const CaseTensor& d_output) {
  const Saved saved = run_forward(stream, inputs);
  const Owned x = to_operand(inputs.at("x")), gain = to_operand(inputs.at("gain")), d_y = to_operand(d_output);
  const Owned d_x = make_output(x.view.dtype, inputs.at("x").shape);
  CaseTensor zero = inputs.at("gain");
  std::fill(zero.values.begin(), zero.values.end(), 0.0f);
  const Owned d_gain = to_operand(zero);
  rms_norm_backward(stream, x.view, gain.view, saved.rstd.view, d_y.view, {}, d_x.view, d_gain.view);
  return {{"x", to_case_tensor(d_x)}, {"gain", to_case_tensor(d_gain)}};
}

OpCase make_case(std::vector<int64_t> shape, DType dtype) {
  OpCase c;
  const int64_t width = shape.back();
  c.name = fmt::format("rms_norm/{}/..x{}", name_of(dtype), width);
  c.inputs = {{"x", random_tensor("x", shape, dtype, 2.0f)}, {"gain", random_tensor("gain", {width}, DType::f32)}};
  c.forward = [](Stream& stream, const Tensors& inputs) {
    const Saved saved = run_forward(stream, inputs);
    return Tensors{{"y", to_case_tensor(saved.y)}, {"rstd", to_case_tensor(saved.rstd)}};
  };
  c.backward = [](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return run_backward(stream, inputs, d_outputs.at("y"));
  };
  c.reference = [](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("x").values, &gain = inputs.at("gain").values;
    const size_t W = gain.size();
    std::vector<double> y(x.size()), rstd(x.size() / W);
    for (size_t r = 0; r < rstd.size(); ++r) {
      double sum = 0;
      for (size_t i = 0; i < W; ++i) sum += std::pow(static_cast<double>(x[r * W + i]), 2);
      rstd[r] = 1.0 / std::sqrt(sum / static_cast<double>(W) + static_cast<double>(kEps));
      for (size_t i = 0; i < W; ++i)
        y[r * W + i] = static_cast<double>(gain[i]) * static_cast<double>(x[r * W + i]) * rstd[r];
    }
    return std::map<std::string, std::vector<double>>{{"y", y}, {"rstd", rstd}};
  };
  c.constant_outputs = {"rstd"};
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 2e-6;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "a few fp32 roundings";
  return c;
}

std::vector<OpCase> all_cases() {
  using Shape = std::vector<int64_t>;
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{1, 2}, Shape{7, 5}, Shape{130, 31}, Shape{9, 3, 16}, Shape{64}})
      cases.push_back(make_case(shape, dtype));
    // With rows in several groups of threads, and rows of one wave, of one block, and wider than a block holds.
    for (const Shape& shape : {Shape{1100, 7}, Shape{1030, 8}, Shape{3, 12}, Shape{33, 96}, Shape{70, 200}})
      cases.push_back(make_case(shape, dtype));
    for (const Shape& shape : {Shape{5, 320}, Shape{3, 1000}, Shape{3, 2048}, Shape{2, 2056}})
      cases.push_back(make_case(shape, dtype));
    for (const Shape& shape : {Shape{2, 1031}, Shape{2, 8208}}) cases.push_back(make_case(shape, dtype));
  }
  return cases;
}

TEST(RmsNorm, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
  // So many rows that a block of a GPU takes several in turn.
  for (DType dtype : {DType::f32, DType::bf16}) check_forward(make_case({4100, 520}, dtype), test.stream);
  // Rows of one element: their gradient is nothing but cancellation.
  for (DType dtype : {DType::f32, DType::bf16}) check_forward(make_case({5, 1}, dtype), test.stream);
}

TEST(RmsNorm, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(RmsNorm, TensorsMayStartAnywhere) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Tensors aligned = c.forward(test.stream, c.inputs);
    const OffBorders scope;
    for (const auto& [name, tensor] : c.forward(test.stream, c.inputs))
      EXPECT_EQ(tensor.values, aligned.at(name).values) << c.name << " " << name;
    check_gradient(c, test.stream);
  }
}

TEST(RmsNorm, ThreadsDoNotChangeBits) {
  check_thread_invariance(make_case({333, 77}, DType::f32));
  check_thread_invariance(make_case({3000, 65}, DType::bf16));
}

TEST(RmsNorm, ApplyGivesTheSameBits) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Saved saved = run_forward(test.stream, c.inputs);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    const Owned y = make_output(x.view.dtype, c.inputs.at("x").shape);
    rms_norm_apply(test.stream, x.view, gain.view, saved.rstd.view, y.view);
    EXPECT_EQ(y.memory, saved.y.memory) << c.name;
    rms_norm_apply(test.stream, x.view, gain.view, saved.rstd.view, x.view);
    EXPECT_EQ(x.memory, saved.y.memory) << c.name << " in place";
  }
}

TEST(RmsNorm, AddedBeforeGivesTheBitsOfTwoSteps) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const CaseTensor& shape = c.inputs.at("x");
    const Owned a = to_operand(random_tensor("a", shape.shape, shape.dtype)), b = to_operand(shape),
                gain = to_operand(c.inputs.at("gain")), sum = make_output(shape.dtype, shape.shape);
    add(test.stream, a.view, b.view, sum.view);
    Tensors two_steps = c.inputs;
    two_steps.at("x") = to_case_tensor(sum);
    const Saved expected = run_forward(test.stream, two_steps);
    const Owned y = make_output(shape.dtype, shape.shape), rstd = make_output(DType::f32, {a.view.rows()});
    add_rms_norm(test.stream, a.view, b.view, gain.view, kEps, a.view, y.view, rstd.view);
    EXPECT_EQ(a.memory, sum.memory) << c.name << " over a";
    EXPECT_EQ(y.memory, expected.y.memory) << c.name;
    EXPECT_EQ(rstd.memory, expected.rstd.memory) << c.name;
  }
}

TEST(RmsNorm, InPlaceAndWithoutRstd) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Saved saved = run_forward(test.stream, c.inputs);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    rms_norm(test.stream, x.view, gain.view, kEps, x.view, {});
    EXPECT_EQ(x.memory, saved.y.memory) << c.name;
  }
}

// d_gain is accumulated, d_residual is added, and d_x may take the place of either input gradient.
TEST(RmsNorm, BackwardAccumulatesAndAliases) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const OpCase c = make_case({37, 45}, dtype);
    const Saved saved = run_forward(test.stream, c.inputs);
    const CaseTensor d_y = random_tensor("d_y", {37, 45}, dtype), residual = random_tensor("res", {37, 45}, dtype);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    const CaseTensor start = random_tensor("start", {45}, DType::f32);
    const auto run = [&](const Owned& d_out, const Owned& d_res, const Owned& d_in) {
      const Owned d_gain = to_operand(start);
      rms_norm_backward(test.stream, x.view, gain.view, saved.rstd.view, d_out.view, d_res.view, d_in.view,
                        d_gain.view);
      return to_case_tensor(d_gain).values;
    };
    const Owned d_x = make_output(dtype, {37, 45});
    const std::vector<float> d_gain = run(to_operand(d_y), to_operand(residual), d_x);
    const Owned over_d_y = to_operand(d_y), over_residual = to_operand(residual);
    EXPECT_EQ(run(over_d_y, to_operand(residual), over_d_y), d_gain);
    EXPECT_EQ(over_d_y.memory, d_x.memory);
    EXPECT_EQ(run(to_operand(d_y), over_residual, over_residual), d_gain);
    EXPECT_EQ(over_residual.memory, d_x.memory);

    const Tensors plain = run_backward(test.stream, c.inputs, d_y);
    const std::vector<float> with_residual = to_case_tensor(d_x).values;
    std::vector<double> expected_x, expected_gain;
    for (size_t i = 0; i < with_residual.size(); ++i)
      expected_x.push_back(static_cast<double>(plain.at("x").values[i]) + static_cast<double>(residual.values[i]));
    for (size_t i = 0; i < d_gain.size(); ++i)
      expected_gain.push_back(static_cast<double>(plain.at("gain").values[i]) + static_cast<double>(start.values[i]));
    EXPECT_LE(largest_error(with_residual, expected_x), dtype == DType::bf16 ? 2e-2 : 1e-6);
    EXPECT_LE(largest_error(d_gain, expected_gain), 1e-6);
  }
}

TEST(RmsNorm, NoRows) {
  TestStream test;
  const Tensors inputs = {{"x", CaseTensor{{0, 8}, {}, DType::bf16}}, {"gain", random_tensor("gain", {8}, DType::f32)}};
  const Tensors gradients = run_backward(test.stream, inputs, inputs.at("x"));
  EXPECT_EQ(gradients.at("gain").values, std::vector<float>(8, 0.0f));
}

TEST(RmsNorm, WorkspaceBoundHolds) {
  for (int64_t rows : {1, 16, 17, 5000}) {
    TestStream test(2, static_cast<size_t>(norm_workspace_bytes(rows, 33, device_kind())));
    const OpCase c = make_case({rows, 33}, DType::f32);
    run_backward(test.stream, c.inputs, c.inputs.at("x"));
    EXPECT_EQ(static_cast<int64_t>(test.stream.workspace().peak()), norm_workspace_bytes(rows, 33, device_kind()));
    EXPECT_LE(norm_workspace_bytes(rows, 33, device_kind()), (on_gpu() ? 512 : 128) * 33 * 4);
  }
}

TEST(RmsNorm, WrongOperandsAreNamed) {
  TestStream test;
  const Owned x = make_output(DType::f32, {4, 8}), gain = make_output(DType::f32, {7});
  EXPECT_THROW(rms_norm(test.stream, x.view, gain.view, kEps, x.view, {}), Error);
}

}  // namespace
}  // namespace mw::test
