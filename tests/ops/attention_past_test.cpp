// Attention of the last tokens of sequences whose earlier keys are stored: generation with a key/value cache.
#include "ops/attention_problem.h"

namespace mw::test {
namespace {

// The last `queries` of each sequence of a problem, over keys with rows between the sequences that hold no numbers.
std::vector<float> run_last(Stream& stream, const Problem& whole, const Tensors& inputs, int64_t queries) {
  constexpr int64_t kGap = 13;
  const AttentionShape& s = whole.shape;
  const int64_t past = s.seq_len - queries;
  const auto rows_of = [&](const std::string& name, int64_t begin, int64_t gap) {
    CaseTensor rows = inputs.at(name);
    const auto row = static_cast<int64_t>(rows.values.size()) / (s.sequences * s.seq_len);
    std::vector<float> values;
    for (int64_t b = 0; b < s.sequences; ++b) {
      const auto at = rows.values.begin() + b * s.seq_len * row;
      values.insert(values.end(), at + begin * row, at + s.seq_len * row);
      values.insert(values.end(), static_cast<size_t>(gap * row), std::numeric_limits<float>::quiet_NaN());
    }
    rows.shape[0] = static_cast<int64_t>(values.size()) / row;
    rows.values = std::move(values);
    return to_operand(rows);
  };
  Problem last = whole;
  last.shape.seq_len = queries;
  last.shape.past = past;
  last.first.clear();
  for (size_t t = 0; t < whole.first.size(); ++t)
    if (static_cast<int64_t>(t) % s.seq_len >= past) last.first.push_back(whole.first[t]);
  const int64_t T = s.sequences * queries;
  const Owned q = rows_of("q", past, 0), k = rows_of("k", 0, kGap), v = rows_of("v", 0, kGap),
              o = make_output(whole.dtype, {T, s.heads, s.value_dim}), lse = make_output(DType::f32, {s.heads, T}),
              first = first_operand(last);
  attention(stream, last.shape, q.view, k.view, v.view, o.view, lse.view, first.view);
  return to_case_tensor(o).values;
}

// Of one token and of several, on the borders of tiles and beside them.
TEST(AttentionPast, LastTokensMatchReference) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t window : {0, 5, 70})
      for (const int64_t queries : {1, 2, 63, 65, 130}) {
        Problem problem = make_problem(2, 200, 4, 2, 20, 12, dtype);
        problem.shape.documents = window > 0;
        for (int64_t t = 0; window > 0 && t < 400; ++t)
          problem.first.push_back(static_cast<int>(std::max<int64_t>(t % 200 - window + 1, 0)));
        const Tensors inputs = make_inputs(problem);
        const Doubles whole = naive_forward(problem, inputs).at("o");
        const auto row = static_cast<std::ptrdiff_t>(whole.size()) / 400;
        Doubles expected;
        for (const std::ptrdiff_t end : {200, 400})
          expected.insert(expected.end(), whole.begin() + (end - queries) * row, whole.begin() + end * row);
        EXPECT_LE(largest_error(run_last(test.stream, problem, inputs, queries), expected),
                  dtype == DType::f32 ? 1e-5 : 1e-2)
            << queries << " queries, window " << window;
      }
}

TEST(AttentionPast, WrongKeysAreNamed) {
  TestStream test;
  AttentionShape shape{2, 1, 1, 1, 4, 4, 1.0f};
  shape.past = 3;
  const Owned q = make_output(DType::f32, {2, 1, 4}), k = make_output(DType::f32, {7, 1, 4}),
              lse = make_output(DType::f32, {1, 2});
  try {
    attention(test.stream, shape, q.view, k.view, k.view, q.view, lse.view);
    FAIL() << "7 rows of keys for 2 sequences of 4 were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("k is f32[7, 1, 4]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace mw::test
