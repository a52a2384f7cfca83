#include "ops/bias.h"

#include <gtest/gtest.h>

#include "support/op_case.h"

namespace mw::test {
namespace {

OpCase make_case(int64_t rows, int64_t width, DType dtype) {
  OpCase c;
  c.name = fmt::format("add_bias/{}/{}x{}", name_of(dtype), rows, width);
  c.inputs = {{"x", random_tensor("x", {rows, width}, dtype)}, {"bias", random_tensor("bias", {width}, DType::f32)}};
  c.forward = [](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), bias = to_operand(inputs.at("bias"));
    add_bias(stream, x.view, bias.view);
    return Tensors{{"y", to_case_tensor(x)}};
  };
  c.backward = [width](Stream& stream, const Tensors&, const Tensors& d_outputs) {
    const CaseTensor ones{{width}, std::vector<float>(static_cast<size_t>(width), 1.0f), DType::f32};
    const Owned d = to_operand(d_outputs.at("y")), d_bias = to_operand(ones);
    bias_backward(stream, d.view, d_bias.view);
    CaseTensor sums = to_case_tensor(d_bias);
    for (float& sum : sums.values) sum -= 1.0f;  // it accumulates
    return Tensors{{"bias", sums}};
  };
  c.reference = [width](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("x").values, &bias = inputs.at("bias").values;
    std::vector<double> y(x.begin(), x.end());
    for (size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(bias[i % static_cast<size_t>(width)]);
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-6;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "one rounding to fp32";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(make_case(1, 1, dtype));
    cases.push_back(make_case(7, 33, dtype));
    cases.push_back(make_case(70, 64, dtype));
    cases.push_back(make_case(300, 200, dtype));
  }
  return cases;
}

TEST(Bias, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(Bias, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(Bias, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(Bias, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_thread_invariance(make_case(300, 200, dtype));
}

TEST(Bias, NoRowsGiveNoGradient) {
  TestStream test;
  const Owned d = make_output(DType::bf16, {0, 8}), d_bias = to_operand(random_tensor("d", {8}, DType::f32));
  const std::vector<float> before = to_case_tensor(d_bias).values;
  bias_backward(test.stream, d.view, d_bias.view);
  EXPECT_EQ(to_case_tensor(d_bias).values, before);
}

}  // namespace
}  // namespace mw::test
