#include "ops/row_gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/op_case.h"

namespace mw::test {
namespace {

// y = sigmoid(logit) * x by rows. The gradient of x is that of a gated feed-forward, which scales rows too.
OpCase make_case(int64_t rows, int64_t width, DType dtype) {
  OpCase c;
  c.name = fmt::format("gate_rows/{}/{}x{}", name_of(dtype), rows, width);
  c.inputs = {{"x", random_tensor("x", {rows, width}, dtype)},
              {"logits", random_tensor("l", {rows}, DType::f32, 3.0f)}};
  c.forward = [](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), gate = to_operand(inputs.at("logits"));
    gate_rows(stream, gate.view, x.view);
    return Tensors{{"y", to_case_tensor(x)}, {"gate", to_case_tensor(gate)}};
  };
  c.backward = [](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    // The gradient of the gate through y, which an activation's backward pass gives, and its own.
    const Owned x = to_operand(inputs.at("x")), gate = to_operand(inputs.at("logits"));
    gate_rows(stream, gate.view, x.view);
    CaseTensor d_gate = d_outputs.at("gate");
    const std::vector<float>&d_y = d_outputs.at("y").values, &values = inputs.at("x").values;
    const size_t width_of_row = values.size() / d_gate.values.size();
    for (size_t i = 0; i < values.size(); ++i) d_gate.values[i / width_of_row] += d_y[i] * values[i];
    const Owned d = to_operand(d_gate);
    gate_backward(stream, gate.view, d.view);
    return Tensors{{"logits", to_case_tensor(d)}};
  };
  c.reference = [](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("x").values, &logits = inputs.at("logits").values;
    std::vector<double> y, gate;
    for (const float logit : logits) gate.push_back(1 / (1 + std::exp(-static_cast<double>(logit))));
    for (size_t i = 0; i < x.size(); ++i) y.push_back(gate[i / (x.size() / logits.size())] * static_cast<double>(x[i]));
    return std::map<std::string, std::vector<double>>{{"y", y}, {"gate", gate}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-6;
  c.gradient_tolerance = 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "an exponential in fp32";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(make_case(1, 1, dtype));
    cases.push_back(make_case(7, 33, dtype));
    cases.push_back(make_case(300, 200, dtype));
  }
  return cases;
}

TEST(RowGate, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(RowGate, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(RowGate, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(RowGate, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_thread_invariance(make_case(300, 200, dtype));
}

}  // namespace
}  // namespace mw::test
