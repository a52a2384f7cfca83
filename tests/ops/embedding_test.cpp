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

// With the table's rows as the ids from `begin` on.
Tensors run_backward(Stream& stream, const Tensors& inputs, const CaseTensor& d_output, float start, VocabPart part) {
  CaseTensor d_table = inputs.at("table");
  std::fill(d_table.values.begin(), d_table.values.end(), start);
  const Owned sum = to_operand(d_table), ids = to_operand(inputs.at("ids")), d_y = to_operand(d_output);
  embed_backward(stream, d_y.view, part, ids.view, sum.view);
  return {{"table", to_case_tensor(sum)}};
}

OpCase make_case(int64_t tokens, int64_t rows, int64_t width, DType dtype, VocabPart part) {
  OpCase c;
  c.name = fmt::format("embed/{}/{}of{}x{}/from{}of{}", name_of(dtype), tokens, rows, width, part.begin, part.vocab);
  c.inputs = {{"table", random_tensor("table", {rows, width}, DType::f32)}, {"ids", make_ids(tokens, part.vocab)}};
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned table = to_operand(inputs.at("table")), ids = to_operand(inputs.at("ids"));
    const Owned y = make_output(dtype, {tokens, width});
    embed(stream, table.view, part, ids.view, y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.backward = [part](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return run_backward(stream, inputs, d_outputs.at("y"), 0.0f, part);
  };
  c.reference = [=](const Tensors& inputs) {
    const auto D = static_cast<size_t>(width);
    std::vector<double> y;
    for (float id : inputs.at("ids").values) {
      const int64_t at = static_cast<int64_t>(id) - part.begin;
      const bool is_here = at >= 0 && at < rows;
      for (size_t i = 0; i < D; ++i)
        y.push_back(is_here ? inputs.at("table").values[static_cast<size_t>(at) * D + i] : 0);
    }
    return std::map<std::string, std::vector<double>>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 0;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "a copy";
  return c;
}

OpCase make_case(int64_t tokens, int64_t vocabulary, int64_t width, DType dtype) {
  return make_case(tokens, vocabulary, width, dtype, {0, vocabulary});
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(make_case(1, 1, 1, dtype));
    cases.push_back(make_case(33, 11, 70, dtype));
    cases.push_back(make_case(200, 50, 129, dtype));
    cases.push_back(make_case(20, 7, 320, dtype));
    cases.push_back(make_case(33, 5, 70, dtype, {0, 11}));
    cases.push_back(make_case(200, 17, 129, dtype, {16, 50}));
    cases.push_back(make_case(200, 300, 32, dtype, {1000, 1300}));
    cases.push_back(make_case(9, 0, 8, dtype, {3, 3}));
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
  const std::vector<float> plain = run_backward(test.stream, c.inputs, d_y, 0.0f, {0, 11}).at("table").values;
  const std::vector<float> onto = run_backward(test.stream, c.inputs, d_y, 2.0f, {0, 11}).at("table").values;
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(onto[i], plain[i] + 2.0f, 2e-5f);
}

TEST(Embedding, NoTokens) {
  TestStream test;
  const OpCase c = make_case(0, 5, 8, DType::bf16);
  EXPECT_TRUE(c.forward(test.stream, c.inputs).at("y").values.empty());
  const CaseTensor d_y{{0, 8}, {}, DType::bf16};
  EXPECT_EQ(run_backward(test.stream, c.inputs, d_y, 0.0f, {0, 5}).at("table").values, std::vector<float>(40, 0.0f));
}

TEST(Embedding, ClearsTheRowsOfIds) {
  TestStream test;
  for (const int64_t width : {1, 70, 320}) {
    const CaseTensor table = random_tensor("table", {11, width}, DType::f32);
    const Owned ids = to_operand(integer_tensor({6}, {25, 20, 3, 25, 30, 31})), cleared = to_operand(table);
    clear_rows(test.stream, {20, 40}, ids.view, cleared.view);
    clear_rows(test.stream, {20, 40}, to_operand(integer_tensor({0}, {})).view, cleared.view);
    std::vector<float> expected = table.values;
    for (const int64_t row : {0, 5, 10}) std::fill_n(expected.begin() + row * width, width, 0.0f);
    EXPECT_EQ(to_case_tensor(cleared).values, expected);
  }
}

// Parts of the vocabulary, one without a row, have between them the bits of the whole: of each token one part has the
// row, of each row one part sums the gradients.
TEST(Embedding, PartsAreTheWhole) {
  TestStream test;
  constexpr int64_t kTokens = 70, kVocab = 29, kWidth = 33;
  const OpCase whole = make_case(kTokens, kVocab, kWidth, DType::f32);
  const CaseTensor& table = whole.inputs.at("table");
  const CaseTensor d_y = random_tensor("d_y", {kTokens, kWidth}, DType::f32);
  std::vector<float> y(kTokens * kWidth), d_table;
  const int64_t begins[] = {0, 10, 10, 28, 29};
  for (size_t p = 0; p < 4; ++p) {
    const VocabPart part{begins[p], kVocab};
    const int64_t rows = begins[p + 1] - begins[p];
    Tensors inputs = whole.inputs;
    inputs.at("table") =
        CaseTensor{{rows, kWidth},
                   {table.values.begin() + begins[p] * kWidth, table.values.begin() + begins[p + 1] * kWidth},
                   DType::f32};
    const Tensors found = make_case(kTokens, rows, kWidth, DType::f32, part).forward(test.stream, inputs);
    for (size_t i = 0; i < y.size(); ++i) y[i] += found.at("y").values[i];
    const std::vector<float> sums = run_backward(test.stream, inputs, d_y, 0.0f, part).at("table").values;
    d_table.insert(d_table.end(), sums.begin(), sums.end());
  }
  EXPECT_EQ(y, whole.forward(test.stream, whole.inputs).at("y").values);
  EXPECT_EQ(d_table, run_backward(test.stream, whole.inputs, d_y, 0.0f, {0, kVocab}).at("table").values);
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
