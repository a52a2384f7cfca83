#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "support/op_case.h"

namespace mw::test {
namespace {

CaseTensor make_ids(int64_t tokens, int64_t vocabulary) {
  std::vector<int> ids;
  for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int>((t * t * 7 + t) % vocabulary));  // repeats some
  if (tokens > 0) ids.back() = static_cast<int>(vocabulary - 1);
  return integer_tensor({tokens}, ids);
}

Tensors run_backward(Stream& stream, const Tensors& inputs, const CaseTensor& d_output, float start) {
  CaseTensor d_table = inputs.at("table");
  std::fill(d_table.values.begin(), d_table.values.end(), start);
  const Owned sum = to_operand(d_table), ids = to_operand(inputs.at("ids")), d_y = to_operand(d_output);
  embed_backward(stream, d_y.view, ids.view, sum.view);
  return {{"table", to_case_tensor(sum)}};
}

OpCase make_case(int64_t tokens, int64_t vocabulary, int64_t width, DType dtype) {
  OpCase c;
  c.name = fmt::format("embed/{}/{}of{}x{}", name_of(dtype), tokens, vocabulary, width);
  c.inputs = {{"table", random_tensor("table", {vocabulary, width}, DType::f32)},
              {"ids", make_ids(tokens, vocabulary)}};
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned table = to_operand(inputs.at("table")), ids = to_operand(inputs.at("ids"));
    const Owned y = make_output(dtype, {tokens, width});
    embed(stream, table.view, ids.view, y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.backward = [](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return run_backward(stream, inputs, d_outputs.at("y"), 0.0f);
  };
  c.reference = [=](const Tensors& inputs) {
    const auto D = static_cast<size_t>(width);
    std::vector<double> y;
    for (float id : inputs.at("ids").values)
      for (size_t i = 0; i < D; ++i) y.push_back(inputs.at("table").values[static_cast<size_t>(id) * D + i]);
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 0;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "a copy";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(make_case(1, 1, 1, dtype));
    cases.push_back(make_case(33, 11, 70, dtype));
    cases.push_back(make_case(200, 50, 129, dtype));
    cases.push_back(make_case(20, 7, 320, dtype));
  }
  return cases;
}

TEST(Embedding, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(Embedding, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(Embedding, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(Embedding, ThreadsDoNotChangeBits) {
  check_thread_invariance(make_case(300, 9, 200, DType::f32));
  check_thread_invariance(make_case(300, 9, 200, DType::bf16));
}

TEST(Embedding, BackwardAccumulates) {
  TestStream test;
  const OpCase c = make_case(33, 11, 70, DType::f32);
  const CaseTensor d_y = random_tensor("d_y", {33, 70}, DType::f32);
  const std::vector<float> plain = run_backward(test.stream, c.inputs, d_y, 0.0f).at("table").values;
  const std::vector<float> onto = run_backward(test.stream, c.inputs, d_y, 2.0f).at("table").values;
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(onto[i], plain[i] + 2.0f, 2e-5f);
}

TEST(Embedding, NoTokens) {
  TestStream test;
  const OpCase c = make_case(0, 5, 8, DType::bf16);
  EXPECT_TRUE(c.forward(test.stream, c.inputs).at("y").values.empty());
  const CaseTensor d_y{{0, 8}, {}, DType::bf16};
  EXPECT_EQ(run_backward(test.stream, c.inputs, d_y, 0.0f).at("table").values, std::vector<float>(40, 0.0f));
}

TEST(Embedding, IdOutOfRangeIsNamed) {
  if (on_gpu()) GTEST_SKIP() << "a kernel cannot throw";
  TestStream test;
  for (int id : {-1, 11}) {
    OpCase c = make_case(3, 11, 4, DType::f32);
    c.inputs.at("ids") = integer_tensor({3}, {0, id, 1});
    try {
      c.forward(test.stream, c.inputs);
      FAIL() << "id " << id << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("token 1 has id {}", id)), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace mw::test
