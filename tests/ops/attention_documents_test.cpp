// Attention within the documents of packed sequences.
#include "ops/attention_problem.h"

namespace mw::test {
namespace {

// The problem with documents: begins_here(t) for token t of all.
template <class BeginsHere>
Problem cut(Problem problem, const BeginsHere& begins_here) {
  const int64_t S = problem.shape.seq_len;
  problem.shape.documents = true;
  for (int64_t t = 0, first = 0; t < problem.shape.sequences * S; ++t) {
    if (t % S == 0 || begins_here(t)) first = t % S;
    problem.first.push_back(static_cast<int>(first));
  }
  return problem;
}

Problem cut_at(const Problem& problem, const std::vector<int64_t>& positions) {
  return cut(problem,
             [&](int64_t t) { return std::count(positions.begin(), positions.end(), t % problem.shape.seq_len) > 0; });
}

// Other lengths in every sequence, some of one token.
Problem cut_anywhere(const Problem& problem, int seed) {
  return cut(problem, [&](int64_t t) {
    const auto mixed = static_cast<uint64_t>(t + 1 + 1000 * seed) * 0x9e3779b97f4a7c15ull;
    return (mixed >> 33) % 13 == 0 || (mixed >> 40) % 31 < static_cast<uint64_t>(t % 3);
  });
}

// Documents of one token, of a whole sequence, with bounds on the edges of tiles and beside them, longer than a tile
// and so long that whole tiles are hidden.
std::vector<Problem> document_problems() {
  std::vector<Problem> problems;
  for (DType dtype : {DType::f32, DType::bf16}) {
    problems.push_back(cut(make_problem(2, 70, 2, 1, 8, 8, dtype), [](int64_t) { return true; }));
    problems.push_back(cut_at(make_problem(2, 130, 2, 2, 16, 16, dtype), {}));
    problems.push_back(cut_at(make_problem(1, 200, 4, 2, 16, 24, dtype), {63, 64, 65, 128, 199}));
    problems.push_back(cut_at(make_problem(2, 257, 2, 1, 20, 12, dtype), {64, 192}));
    problems.push_back(cut_at(make_problem(1, 300, 2, 2, 64, 64, dtype), {1, 140}));
    problems.push_back(cut_anywhere(make_problem(3, 129, 4, 2, 33, 17, dtype), 1));
    problems.push_back(cut_anywhere(make_problem(2, 200, 2, 2, 192, 128, dtype), 2));
    problems.push_back(cut_anywhere(make_problem(1, 5, 1, 1, 3, 2, dtype), 3));
  }
  // Shapes that a library is made for.
  problems.push_back(cut_anywhere(make_problem(3, 300, 8, 2, 64, 64, DType::bf16), 6));
  problems.push_back(cut_at(make_problem(2, 512, 8, 8, 128, 128, DType::bf16), {1, 128, 200, 201, 384}));
  // So long that every kernel has tiles in which nothing is hidden.
  problems.push_back(cut_at(make_problem(1, 650, 4, 2, 128, 128, DType::bf16), {5, 100}));
  problems.push_back(cut_at(make_problem(2, 577, 4, 1, 104, 72, DType::bf16), {130}));
  problems.push_back(cut_at(make_problem(1, 600, 2, 1, 56, 64, DType::bf16), {40}));
  return problems;
}

TEST(AttentionDocuments, MatchReference) {
  TestStream test;
  for (const Problem& problem : document_problems()) {
    check_forward(make_case(problem), test.stream);
    check_backward(problem, test.stream);
  }
}

// A model may state any scale: with latent attention YaRN multiplies it. Queries that begin a document within a tile
// see no key of the first tile that a block walks over.
TEST(AttentionDocuments, LargeScalesMatchReference) {
  TestStream test;
  for (const float scale : {1.0f, 1.5f, 2.0f})
    for (const int64_t width : {8, 64}) {
      Problem problem = cut_at(make_problem(1, 200, 2, 1, width, width, DType::bf16), {50, 130});
      problem.shape.scale = scale;
      check_forward(make_case(problem), test.stream);
    }
}

TEST(AttentionDocuments, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Problem& problem : {cut_at(make_problem(1, 140, 2, 1, 8, 12, dtype), {3, 64, 130}),
                                   cut_anywhere(make_problem(2, 70, 4, 2, 8, 6, dtype), 4)})
      check_gradient(make_case(problem), test.stream);
}

TEST(AttentionDocuments, ThreadsAndRepetitionsDoNotChangeBits) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16}) {
    check_thread_invariance(make_case(cut_anywhere(make_problem(2, 150, 4, 2, 20, 20, dtype), 5)));
    check_repeats(cut_anywhere(make_problem(3, 300, 8, 2, 128, 128, dtype), 7), test.stream);
  }
}

// A packed sequence gives each document what it has alone, and other documents' values reach no bit of it.
TEST(AttentionDocuments, AreIndependent) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t bounds[] = {0, 50, 64, 65, 180, 230};
    const Problem packed = cut_at(make_problem(1, 230, 2, 1, 16, 24, dtype), {50, 64, 65, 180});
    const Tensors inputs = make_inputs(packed);
    const CaseTensor d_o = random_tensor("d_o", {230, 2, 24}, dtype);
    const auto part = [](const CaseTensor& whole, int64_t begin, int64_t end) {
      CaseTensor rows = whole;
      const auto row = static_cast<std::ptrdiff_t>(whole.values.size()) / whole.shape[0];
      rows.values.assign(whole.values.begin() + begin * row, whole.values.begin() + end * row);
      rows.shape[0] = end - begin;
      return rows;
    };
    const Tensors outputs = run_forward(test.stream, packed, inputs),
                  gradients = run_backward(test.stream, packed, inputs, d_o);
    const double tolerance = dtype == DType::f32 ? 2e-5 : may_go_to_library(packed) ? 6e-2 : 2e-2;
    for (size_t i = 0; i + 1 < std::size(bounds); ++i) {
      const int64_t begin = bounds[i], end = bounds[i + 1];
      const Problem alone = make_problem(1, end - begin, 2, 1, 16, 24, dtype);
      Tensors own, changed = inputs;
      for (const auto& [name, tensor] : inputs) {
        own[name] = part(tensor, begin, end);
        const int64_t row = std::ssize(tensor.values) / 230;
        for (int64_t at = 0; at < std::ssize(tensor.values); ++at)
          if (at / row < begin || at / row >= end) changed.at(name).values[static_cast<size_t>(at)] *= -2.0f;
      }
      const auto expect_near = [&](const CaseTensor& got, const CaseTensor& expected, const std::string& what) {
        if (end - begin == 1 && (what == "q" || what == "k")) return;  // zero, up to rounding
        EXPECT_LE(largest_error(got.values, {expected.values.begin(), expected.values.end()}), tolerance)
            << describe(packed) << ", document " << i << ", " << what;
      };
      expect_near(part(outputs.at("o"), begin, end), run_forward(test.stream, alone, own).at("o"), "o");
      for (const auto& [name, expected] : run_backward(test.stream, alone, own, part(d_o, begin, end)))
        expect_near(part(gradients.at(name), begin, end), expected, name);
      EXPECT_EQ(part(run_forward(test.stream, packed, changed).at("o"), begin, end).values,
                part(outputs.at("o"), begin, end).values);
      const Tensors beside_others = run_backward(test.stream, packed, changed, d_o);
      for (const char* name : {"q", "k", "v"})
        EXPECT_EQ(part(beside_others.at(name), begin, end).values, part(gradients.at(name), begin, end).values) << name;
    }
  }
}

TEST(AttentionDocuments, WorkspaceBoundHolds) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem problem = cut_at(make_problem(2, 300, 8, 2, 64, 64, dtype), {100});
    const int64_t bound = attention_workspace_bytes(problem.shape, dtype, 2, device_kind());
    TestStream test(2, static_cast<size_t>(bound));
    const Tensors inputs = make_inputs(problem);
    run_backward(test.stream, problem, inputs, run_forward(test.stream, problem, inputs).at("o"));
    EXPECT_LE(static_cast<int64_t>(test.stream.workspace().peak()), bound);
  }
}

// Scores of size 1e4, and queries that see no key of the first tile.
TEST(AttentionDocuments, LargeScoresStayFinite) {
  TestStream test;
  const Problem problem = cut_at(make_problem(1, 140, 2, 1, 16, 16, DType::f32), {70, 100});
  Tensors inputs = make_inputs(problem);
  for (const char* name : {"q", "k"})
    for (float& x : inputs.at(name).values) x *= 40.0f;
  const Tensors outputs = run_forward(test.stream, problem, inputs);
  EXPECT_LE(largest_error(outputs.at("o").values, naive_forward(problem, inputs).at("o")), 1e-2);
  const CaseTensor d_o = random_tensor("d_o", {140, 2, 16}, DType::f32);
  for (const auto& [name, gradient] : run_backward(test.stream, problem, inputs, d_o))
    for (float x : gradient.values) ASSERT_TRUE(std::isfinite(x)) << "d_" << name;
}

TEST(AttentionDocuments, BoundsAndShapeGoTogether) {
  TestStream test;
  AttentionShape shape{1, 4, 2, 1, 8, 8, 1.0f};
  const Owned q = make_output(DType::f32, {4, 2, 8}), k = make_output(DType::f32, {4, 1, 8}),
              v = make_output(DType::f32, {4, 1, 8}), lse = make_output(DType::f32, {2, 4}),
              first = to_operand(integer_tensor({4}, {0, 0, 0, 0}));
  EXPECT_THROW(attention(test.stream, shape, q.view, k.view, v.view, q.view, lse.view, first.view), Error);
  shape.documents = true;
  EXPECT_THROW(attention(test.stream, shape, q.view, k.view, v.view, q.view, lse.view), Error);
}

}  // namespace
}  // namespace mw::test
