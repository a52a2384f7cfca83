// Biases of experts: y = bias of the row's expert, times a weight of the row where there are weights.
#include "ops/expert_bias.h"

#include <gtest/gtest.h>

#include "ops/expert_helpers.h"

namespace mw::test {
namespace {

constexpr int64_t kExperts = 5;  // of the model; the rows are of some of them

struct Problem {
  const char* name;
  std::vector<int64_t> offsets;
  std::vector<int32_t> experts;  // empty: 0, 1, ..
  bool has_index = false;
};

const std::vector<Problem> kProblems = {
    {"in order", {0, 3, 3, 10, 40, 41}, {}},
    {"some", {0, 7, 7, 29}, {4, 0, 2}},
    {"later rows by an index", {6, 13, 30}, {3, 1}, true},
    {"none", {0, 0}, {2}},
};

int64_t expert_of(const Problem& problem, int64_t r) {
  size_t range = 0;
  while (problem.offsets[range + 1] <= r) ++range;
  return problem.experts.empty() ? static_cast<int64_t>(range) : problem.experts[range];
}

// y[r] = weight[r] * (x[r] + bias): forward adds the bias alone, backward is that of the weighted sum.
OpCase make_bias_case(const Problem& problem, int64_t width, DType dtype) {
  OpCase c;
  c.name = fmt::format("expert_bias/{}/{}/{}", name_of(dtype), problem.name, width);
  const int64_t rows = problem.offsets.back(), first = problem.offsets.front();
  const DeviceVector<int32_t> index = problem.has_index ? make_permutation("rows", rows) : DeviceVector<int32_t>{};
  const auto shared = std::make_shared<DeviceVector<int32_t>>(index);
  c.inputs = {{"x", random_tensor("x", {rows, width}, dtype)},
              {"weights", random_tensor("weights", {rows}, DType::f32)},
              {"bias", random_tensor("bias", {kExperts, width}, DType::f32)}};
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), bias = to_operand(inputs.at("bias"));
    add_expert_bias(stream, {x.view, index_or_null(*shared)}, problem.offsets, problem.experts, bias.view);
    // The weights are those of the transport, which multiplies later.
    CaseTensor y = to_case_tensor(x);
    y.dtype = DType::f32;
    for (int64_t r = first; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i)
        y.values[place(*shared, r) * static_cast<size_t>(width) + static_cast<size_t>(i)] *=
            inputs.at("weights").values[static_cast<size_t>(r)];
    return Tensors{{"y", y}};
  };
  c.backward = [=](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    CaseTensor d = d_outputs.at("y");
    d.dtype = dtype;
    const Owned dy = to_operand(d), weights = to_operand(inputs.at("weights")), bias = to_operand(inputs.at("bias"));
    CaseTensor ones{{kExperts, width}, std::vector<float>(static_cast<size_t>(kExperts * width), 1.0f), DType::f32};
    const Owned d_bias = to_operand(ones);
    // What the products of the row itself would be.
    CaseTensor products{{rows}, std::vector<float>(static_cast<size_t>(rows)), DType::f32};
    for (int64_t r = first; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) {
        const size_t at = place(*shared, r) * static_cast<size_t>(width) + static_cast<size_t>(i);
        products.values[static_cast<size_t>(r)] += d.values[at] * inputs.at("x").values[at];
      }
    const Owned sums = to_operand(products);
    const SortedRows sorted{dy.view, index_or_null(*shared)};
    ess(stream, sorted, problem.offsets, d_bias.view, problem.experts, weights.view);
    expert_bias_products(stream, sorted, problem.offsets, problem.experts, bias.view, sums.view);
    CaseTensor d_of_bias = to_case_tensor(d_bias);
    for (float& value : d_of_bias.values) value -= 1.0f;  // it accumulates
    return Tensors{{"bias", d_of_bias}, {"weights", to_case_tensor(sums)}};
  };
  c.reference = [=](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("x").values, &bias = inputs.at("bias").values;
    std::vector<double> y(x.begin(), x.end());
    for (int64_t r = first; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) {
        double& value = y[place(*shared, r) * static_cast<size_t>(width) + static_cast<size_t>(i)];
        value += static_cast<double>(bias[static_cast<size_t>(expert_of(problem, r) * width + i)]);
        value *= static_cast<double>(inputs.at("weights").values[static_cast<size_t>(r)]);
      }
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-6;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "one rounding to fp32";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Problem& problem : kProblems)
      for (const int64_t width : {1, 33, 64, 300}) cases.push_back(make_bias_case(problem, width, dtype));
  return cases;
}

TEST(ExpertBias, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(ExpertBias, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases())
    if (!c.inputs.at("x").values.empty()) check_gradient(c, test.stream);
}

TEST(ExpertBias, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const OpCase c = make_bias_case(kProblems[1], 64, dtype);
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(ExpertBias, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_thread_invariance(make_bias_case(kProblems[0], 300, dtype));
}

}  // namespace
}  // namespace mw::test
