#include "ops/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/op_case.h"

namespace mw::test {
namespace {

const char* name_of_kind(Activation kind) {
  switch (kind) {
    case Activation::swiglu: return "swiglu";
    case Activation::gelu: return "gelu";
    case Activation::relu: return "relu";
    case Activation::clamped_swiglu: return "clamped_swiglu";
  }
  return "?";
}

// With constants other than the models', so that both matter.
ActivationRule rule_of(Activation kind) { return {kind, 1.25f, 1.5f}; }

double activate_plainly(Activation kind, double x) {
  switch (kind) {
    case Activation::clamped_swiglu: return std::min(x, 1.5) / (1 + std::exp(-1.25 * std::min(x, 1.5)));
    case Activation::swiglu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu: return x > 0 ? x : 0;
  }
  return NAN;
}

// The outputs of a case are the activated row times its weight: what the backward operator differentiates.
std::map<std::string, std::vector<double>> reference_of(Activation kind, int64_t R, int64_t F, const Tensors& inputs) {
  const std::vector<float>& h = inputs.at("h").values;
  const int64_t halves = kind == Activation::gelu || kind == Activation::relu ? 1 : 2;
  std::vector<double> a, weighted;
  for (int64_t r = 0; r < R; ++r)
    for (int64_t f = 0; f < F; ++f) {
      const auto gate = static_cast<size_t>(r * halves * F + f);
      double value = activate_plainly(kind, static_cast<double>(h[gate]));
      if (halves == 2) {
        const auto up = static_cast<double>(h[gate + static_cast<size_t>(F)]);
        value *= kind == Activation::swiglu ? up : std::clamp(up, -1.5, 1.5) + 1;
      }
      a.push_back(value);
      const double weight = inputs.count("weight") == 0 ? 1.0 : inputs.at("weight").values[static_cast<size_t>(r)];
      weighted.push_back(weight * value);
    }
  return {{"a", a}, {"weighted", weighted}};
}

struct Backward {
  CaseTensor d_h, a, d_weight;
};

// With `in_place` d_h overwrites h and a overwrites d_a.
Backward run_backward(Stream& stream, Activation kind, const Tensors& inputs, const CaseTensor& d_a, bool in_place) {
  const bool has_weight = inputs.count("weight") != 0;
  const Owned h = to_operand(inputs.at("h")), d = to_operand(d_a);
  const Owned weight = has_weight ? to_operand(inputs.at("weight")) : Owned{};
  const Owned d_h = make_output(h.view.dtype, inputs.at("h").shape), a = make_output(h.view.dtype, d_a.shape);
  const Owned d_weight = has_weight ? make_output(DType::f32, {d_a.shape[0]}) : Owned{};
  activate_backward(stream, rule_of(kind), h.view, d.view, weight.view, in_place ? h.view : d_h.view,
                    in_place ? d.view : a.view, d_weight.view);
  return {to_case_tensor(in_place ? h : d_h), to_case_tensor(in_place ? d : a),
          has_weight ? to_case_tensor(d_weight) : CaseTensor{}};
}

OpCase make_case(Activation kind, DType dtype, int64_t R, int64_t F, bool weighted, bool in_place) {
  OpCase op;
  op.name = fmt::format("{}/{}/{}x{}{}{}", name_of_kind(kind), name_of(dtype), R, F, weighted ? "/weight" : "",
                        in_place ? "/in place" : "");
  op.inputs["h"] = random_tensor("activation.h", {R, halves_of(kind), F}, dtype, 2.0f);
  if (kind == Activation::relu)  // finite differences must not step over the kink
    for (float& x : op.inputs["h"].values)
      if (std::abs(x) < 0.01f) x = 0.5f;
  if (kind == Activation::clamped_swiglu)
    for (float& x : op.inputs["h"].values)
      if (std::abs(std::abs(x) - 1.5f) < 0.01f) x = 0.5f;
  if (weighted) op.inputs["weight"] = random_tensor("activation.weight", {R}, DType::f32);
  op.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned h = to_operand(inputs.at("h")), a = make_output(dtype, {R, F});
    activate(stream, rule_of(kind), h.view, a.view);
    // The weighted rows come out of the backward operator.
    const Backward backward =
        run_backward(stream, kind, inputs, random_tensor("activation.any", {R, F}, dtype), in_place);
    return Tensors{{"a", to_case_tensor(a)}, {"weighted", backward.a}};
  };
  op.backward = [=](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    const Backward backward = run_backward(stream, kind, inputs, d_outputs.at("weighted"), in_place);
    Tensors gradients{{"h", backward.d_h}};
    if (weighted) gradients["weight"] = backward.d_weight;
    return gradients;
  };
  op.reference = [=](const Tensors& inputs) { return reference_of(kind, R, F, inputs); };
  op.constant_outputs = {"a"};
  op.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-6;
  op.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 2e-5;
  op.reason = "fp32 arithmetic on exact inputs; a bf16 result is rounded once";
  return op;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (Activation kind : {Activation::swiglu, Activation::gelu, Activation::relu, Activation::clamped_swiglu})
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool weighted : {false, true})
        for (bool in_place : {false, true}) {
          cases.push_back(make_case(kind, dtype, 0, 16, weighted, in_place));
          cases.push_back(make_case(kind, dtype, 1, 1, weighted, in_place));
          cases.push_back(make_case(kind, dtype, 13, 67, weighted, in_place));
          cases.push_back(make_case(kind, dtype, 3, 200, weighted, in_place));
        }
  return cases;
}

TEST(Activation, ForwardAgreesWithTheReference) {
  TestStream test;
  for (const OpCase& op : all_cases()) check_forward(op, test.stream);
}

TEST(Activation, GradientAgreesWithFiniteDifferences) {
  TestStream test;
  for (const OpCase& op : all_cases()) check_gradient(op, test.stream);
}

TEST(Activation, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& op : all_cases()) {
    check_forward(op, test.stream);
    check_gradient(op, test.stream);
  }
}

TEST(Activation, SameBitsOnAnyThreadCount) {
  for (DType dtype : {DType::f32, DType::bf16})
    check_thread_invariance(make_case(Activation::swiglu, dtype, 40, 600, true, false));
}

TEST(Activation, ExtremePreActivations) {
  TestStream test;
  for (Activation kind : {Activation::swiglu, Activation::gelu, Activation::relu}) {
    const std::vector<float> x = {-1000.0f, -100.0f, -88.5f, 0.0f, -0.0f, 89.0f, 100.0f, 1000.0f};
    Tensors inputs{{"h", {{1, halves_of(kind), 8}, x, DType::f32}}};
    if (kind == Activation::swiglu) inputs["h"].values.insert(inputs["h"].values.end(), 8, 1.0f);
    const Owned h = to_operand(inputs.at("h")), a = make_output(DType::f32, {1, 8});
    activate(test.stream, rule_of(kind), h.view, a.view);
    const CaseTensor d_a{{1, 8}, std::vector<float>(8, 1.0f), DType::f32};
    const Backward backward = run_backward(test.stream, kind, inputs, d_a, false);
    const std::vector<float> values = to_case_tensor(a).values;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(values[i], x[i] > 0 ? x[i] : 0.0f, 1e-6f) << name_of_kind(kind) << " of " << x[i];
      if (x[i] != 0.0f) {
        EXPECT_NEAR(backward.d_h.values[i], x[i] > 0 ? 1.0f : 0.0f, 1e-6f) << name_of_kind(kind) << " at " << x[i];
      }
    }
  }
}

// Beyond the limits the values stay, and the derivatives are 0; at them they are not.
TEST(Activation, ClampsHaveNoGradientBeyondTheirLimits) {
  TestStream test;
  const float sigmoid = 1 / (1 + std::exp(-1.25f * 1.5f));
  const Tensors inputs{{"h", {{1, 2, 4}, {1.5f, 9.0f, 9.0f, 1000.0f, 1.5f, -1.5f, 7.0f, -1000.0f}, DType::f32}}};
  const Owned h = to_operand(inputs.at("h")), a = make_output(DType::f32, {1, 4});
  activate(test.stream, rule_of(Activation::clamped_swiglu), h.view, a.view);
  const std::vector<float> values = to_case_tensor(a).values;
  const Backward backward = run_backward(test.stream, Activation::clamped_swiglu, inputs,
                                         {{1, 4}, std::vector<float>(4, 1.0f), DType::f32}, false);
  const std::vector<float> slopes = backward.d_h.values;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(values[i], 1.5f * sigmoid * (i % 2 == 0 ? 2.5f : -0.5f), 1e-6f) << i;
    EXPECT_EQ(slopes[i] != 0.0f, i == 0) << i;
    EXPECT_EQ(slopes[4 + i] != 0.0f, i < 2) << i;
  }
}

TEST(Activation, ANanStaysANan) {
  TestStream test;
  for (Activation kind : {Activation::swiglu, Activation::gelu, Activation::relu, Activation::clamped_swiglu}) {
    const Owned h = to_operand(
        {{1, halves_of(kind), 1}, std::vector<float>(static_cast<size_t>(halves_of(kind)), NAN), DType::f32});
    const Owned a = to_operand({{1, 1}, {0.0f}, DType::f32});
    activate(test.stream, rule_of(kind), h.view, a.view);
    wait_for_device();
    EXPECT_TRUE(std::isnan(a.view.as<float>()[0])) << name_of_kind(kind);
  }
}

}  // namespace
}  // namespace mw::test
