#include "ops/columns.h"

#include <gtest/gtest.h>

#include "support/op_case.h"

namespace mw::test {
namespace {

// Columns [x_begin, ..) of [rows, x_width] to those from y_begin on of [rows * copies, y_width], and back.
struct Problem {
  int64_t rows, copies, x_width, x_begin, y_width, y_begin, count;
};

const Problem kProblems[] = {
    {1, 1, 1, 0, 1, 0, 1},   {7, 1, 12, 4, 20, 8, 8},      {5, 3, 6, 0, 11, 5, 6},      {33, 16, 64, 0, 192, 128, 64},
    {9, 4, 16, 3, 24, 2, 7}, {4, 2, 200, 8, 232, 16, 152}, {300, 1, 96, 64, 32, 0, 32},
};

OpCase make_copy_case(const Problem& p, DType dtype) {
  OpCase c;
  c.name = fmt::format("copy_columns/{}/{}x{}/{}+{} to {}+{}", name_of(dtype), p.rows, p.copies, p.x_begin, p.count,
                       p.y_begin, p.count);
  c.inputs = {{"x", random_tensor("x", {p.rows, p.x_width}, dtype)},
              {"y", random_tensor("y", {p.rows * p.copies, p.y_width}, dtype)}};
  c.forward = [p](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), y = to_operand(inputs.at("y"));
    copy_columns(stream, {x.view, p.x_begin}, {y.view, p.y_begin}, p.count);
    return Tensors{{"out", to_case_tensor(y)}};
  };
  c.backward = [p, dtype](Stream& stream, const Tensors&, const Tensors& d_outputs) {
    CaseTensor zeros{{p.rows, p.x_width}, std::vector<float>(static_cast<size_t>(p.rows * p.x_width)), dtype};
    const Owned d_y = to_operand(d_outputs.at("out")), d_x = to_operand(zeros);
    sum_columns(stream, {d_y.view, p.y_begin}, {d_x.view, p.x_begin}, p.count);
    return Tensors{{"x", to_case_tensor(d_x)}};
  };
  c.reference = [p](const Tensors& inputs) {
    const std::vector<float>& x = inputs.at("x").values;
    const std::vector<float>& before = inputs.at("y").values;
    std::vector<double> y(before.begin(), before.end());
    for (int64_t r = 0; r < p.rows * p.copies; ++r)
      for (int64_t j = 0; j < p.count; ++j)
        y[static_cast<size_t>(r * p.y_width + p.y_begin + j)] =
            static_cast<double>(x[static_cast<size_t>(r / p.copies * p.x_width + p.x_begin + j)]);
    return std::map<std::string, std::vector<double>>{{"out", y}};
  };
  c.tolerance = 0;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = "copied; the gradient is rounded once";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Problem& p : kProblems) cases.push_back(make_copy_case(p, dtype));
  return cases;
}

TEST(Columns, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(Columns, SumIsTheGradientOfCopy) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(Columns, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(Columns, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_thread_invariance(make_copy_case(kProblems[3], dtype));
}

TEST(Columns, NoRows) {
  TestStream test;
  const Owned none = make_output(DType::f32, {0, 4}), heads = make_output(DType::f32, {0, 3, 8});
  copy_columns(test.stream, {none.view, 0}, {heads.view, 4}, 4);
  sum_columns(test.stream, {heads.view, 4}, {none.view, 0}, 4);
}

TEST(Columns, WhatDoesNotFitIsRefused) {
  TestStream test;
  const Owned x = make_output(DType::f32, {2, 4}), y = make_output(DType::f32, {4, 8}),
              odd = make_output(DType::f32, {3, 8});
  const Owned other = make_output(DType::bf16, {4, 8});
  EXPECT_THROW(copy_columns(test.stream, {x.view, 1}, {y.view, 0}, 4), Error);
  EXPECT_THROW(copy_columns(test.stream, {x.view, 0}, {y.view, 5}, 4), Error);
  EXPECT_THROW(copy_columns(test.stream, {x.view, 0}, {y.view, -1}, 4), Error);
  EXPECT_THROW(copy_columns(test.stream, {x.view, 0}, {y.view, 0}, 0), Error);
  EXPECT_THROW(copy_columns(test.stream, {x.view, 0}, {odd.view, 0}, 4), Error);
  EXPECT_THROW(copy_columns(test.stream, {x.view, 0}, {other.view, 0}, 4), Error);
  EXPECT_THROW(sum_columns(test.stream, {x.view, 0}, {y.view, 0}, 4), Error);
}

}  // namespace
}  // namespace mw::test
