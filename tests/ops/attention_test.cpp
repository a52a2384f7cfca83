#include <limits>

#include "ops/attention_problem.h"

namespace mw::test {
namespace {

// Lengths around the tiles of a library, with the widths and groups of heads that it is made for. Each makes it compile
// kernels: not every combination.
std::vector<Problem> library_problems() {
  std::vector<Problem> problems;
  bool grouped = false, several = false;
  for (int64_t seq_len : {1, 17, 64, 127, 256, 300}) {
    for (int64_t head_dim : {32, 64, 128}) {
      problems.push_back(
          make_problem(several ? 3 : 1, seq_len, grouped ? 8 : 4, grouped ? 2 : 4, head_dim, head_dim, DType::bf16));
      grouped = !grouped;
    }
    several = !several;
  }
  problems.push_back(make_problem(3, 127, 8, 2, 64, 64, DType::bf16));
  problems.push_back(make_problem(2, 300, 4, 4, 192, 128, DType::bf16));  // latent attention's
  problems.push_back(make_problem(3, 300, 4, 4, 64, 64, DType::bf16));
  return problems;
}

// Single tokens, lengths around the tile, odd widths, one to eight query heads per KV head, several sequences.
std::vector<Problem> all_problems() {
  std::vector<Problem> problems;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Problem& problem :
         {make_problem(1, 1, 1, 1, 1, 1, dtype), make_problem(3, 1, 2, 1, 8, 8, dtype),
          make_problem(2, 5, 2, 2, 12, 12, dtype), make_problem(1, 17, 8, 1, 20, 7, dtype),
          make_problem(2, 63, 4, 2, 16, 16, dtype), make_problem(1, 64, 2, 2, 32, 32, dtype),
          make_problem(2, 65, 2, 1, 33, 48, dtype), make_problem(1, 130, 8, 1, 24, 40, dtype),
          make_problem(3, 200, 4, 2, 64, 64, dtype), make_problem(1, 257, 2, 2, 128, 96, dtype),
          make_problem(2, 70, 2, 2, 192, 128, dtype)})
      problems.push_back(problem);
  for (const Problem& problem : library_problems()) problems.push_back(problem);
  return problems;
}

TEST(Attention, ForwardMatchesReference) {
  TestStream test;
  for (const Problem& problem : all_problems()) check_forward(make_case(problem), test.stream);
}

TEST(Attention, BackwardMatchesReference) {
  TestStream test;
  for (const Problem& problem : all_problems()) check_backward(problem, test.stream);
}

// A stream that need not repeat itself gets other kernels on some GPUs.
TEST(Attention, BackwardInAnyOrderMatchesReference) {
  TestStream test;
  test.stream.set_deterministic(false);
  for (const Problem& problem : library_problems()) check_backward(problem, test.stream);
  check_backward(make_problem(2, 1500, 4, 2, 64, 64, DType::bf16), test.stream);
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Problem& problem : {make_problem(2, 7, 2, 1, 12, 5, dtype), make_problem(1, 70, 4, 2, 8, 12, dtype),
                                   make_problem(1, 33, 8, 1, 6, 6, dtype)})
      check_gradient(make_case(problem), test.stream);
}

TEST(Attention, ThreadsDoNotChangeBits) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check_thread_invariance(make_case(make_problem(2, 150, 4, 2, 20, 20, dtype)));
    check_thread_invariance(make_case(make_problem(1, 200, 8, 1, 16, 16, dtype)));
  }
}

TEST(Attention, RunsAreRepeatable) {
  TestStream test;
  for (const Problem& problem :
       {make_problem(3, 300, 8, 2, 128, 128, DType::bf16), make_problem(1, 256, 4, 4, 64, 64, DType::bf16)})
    check_repeats(problem, test.stream);
}

// Large shapes go forward to a GPU's library and backward to own kernels, which read lse where the library leaves it.
// As one document, a sequence goes to own kernels both ways. Of heads wider than 64, gradients of scores are stored.
TEST(Attention, OwnBackwardAfterLibraryMatchesOneDocument) {
  if (device_kind() == DeviceKind::cpu) GTEST_SKIP() << "for GPUs";
  for (const int64_t width : {64, 128}) {
    const Problem plain = make_problem(4, 2048, 16, 8, width, width, DType::bf16);
    Problem document = plain;
    document.shape.documents = true;
    document.first.assign(4 * 2048, 0);
    TestStream test(1, static_cast<size_t>(attention_workspace_bytes(plain.shape, plain.dtype, 1, device_kind())));
    const std::string kernels = describe_attention(test.stream, plain.shape, plain.dtype);
    if (kernels.find("cuDNN") != 0) GTEST_SKIP() << kernels;
    ASSERT_NE(kernels.find("backward by own kernels"), std::string::npos)
        << kernels << "; is 90a among the architectures of this build?";
    const Tensors inputs = make_inputs(plain);
    const CaseTensor d_o = random_tensor("d_o", {4 * 2048, 16, width}, plain.dtype);
    const Tensors expected = run_backward(test.stream, document, inputs, d_o),
                  got = run_backward(test.stream, plain, inputs, d_o);
    for (const char* name : {"q", "k", "v"}) {
      const std::vector<float>& values = expected.at(name).values;
      // Both round weights and gradients of scores to bf16, each from an lse of its own.
      EXPECT_LE(largest_error(got.at(name).values, {values.begin(), values.end()}), 3e-2)
          << "d_" << name << " " << width;
    }
    check_repeats(plain, test.stream);
  }
}

// Sequences see nothing of each other: two together give the bits of each alone.
TEST(Attention, SequencesAreIndependent) {
  TestStream test;
  const Problem both = make_problem(2, 90, 2, 1, 16, 16, DType::f32);
  Problem one = both;
  one.shape.sequences = 1;
  const Tensors inputs = make_inputs(both);
  const std::vector<float> o = run_forward(test.stream, both, inputs).at("o").values;
  for (size_t b = 0; b < 2; ++b) {
    Tensors half = inputs;
    for (auto& entry : half) {
      std::vector<float>& values = entry.second.values;
      const auto count = static_cast<std::ptrdiff_t>(values.size() / 2);
      values = std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(b) * count,
                                  values.begin() + static_cast<std::ptrdiff_t>(b + 1) * count);
      entry.second.shape[0] /= 2;
    }
    const std::vector<float> alone = run_forward(test.stream, one, half).at("o").values;
    const auto begin = o.begin() + static_cast<std::ptrdiff_t>(b * alone.size());
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), begin)) << "sequence " << b;
  }
}

// What comes after a token leaves its output alone, to the last bit, inside a tile and across tiles.
TEST(Attention, FutureTokensDoNotReachThePast) {
  TestStream test;
  const Problem problem = make_problem(1, 150, 2, 1, 16, 16, DType::f32);
  Tensors inputs = make_inputs(problem);
  const std::vector<float> before = run_forward(test.stream, problem, inputs).at("o").values;
  constexpr int64_t kChanged = 77;
  for (const char* name : {"q", "k", "v"}) {
    CaseTensor& tensor = inputs.at(name);
    const size_t row = tensor.values.size() / 150;
    for (size_t i = kChanged * row; i < tensor.values.size(); ++i) tensor.values[i] = 3.0f - 2.0f * tensor.values[i];
  }
  const std::vector<float> after = run_forward(test.stream, problem, inputs).at("o").values;
  const auto kept = static_cast<std::ptrdiff_t>(kChanged * 2 * 16);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + kept, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + kept, before.end(), after.begin() + kept));
}

TEST(Attention, LargeScoresStayFinite) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Problem problem = make_problem(1, 140, 2, 1, 16, 16, dtype);
    Tensors inputs = make_inputs(problem);
    for (const char* name : {"q", "k"})
      for (float& x : inputs.at(name).values) x = to_float(to_bf16(x * 40.0f));  // scores of size 1e4
    const Tensors outputs = run_forward(test.stream, problem, inputs);
    const auto expected = naive_forward(problem, inputs);
    // Scores of 1e4 carry fp32 errors of 1e-3, and so do the probabilities.
    EXPECT_LE(largest_error(outputs.at("o").values, expected.at("o")), 1e-2);
    EXPECT_LE(largest_error(outputs.at("lse").values, expected.at("lse")), 1e-5);
    const CaseTensor d_o = random_tensor("d_o", {140, 2, 16}, dtype);
    for (const auto& [name, gradient] : run_backward(test.stream, problem, inputs, d_o))
      for (float x : gradient.values) ASSERT_TRUE(std::isfinite(x)) << "d_" << name;
  }
}

TEST(Attention, NanIsNotHidden) {
  TestStream test;
  const Problem problem = make_problem(1, 70, 1, 1, 8, 8, DType::f32);
  Tensors inputs = make_inputs(problem);
  inputs.at("k").values[8 * 3] = std::numeric_limits<float>::quiet_NaN();  // key 3
  const std::vector<float> o = run_forward(test.stream, problem, inputs).at("o").values;
  EXPECT_TRUE(std::isfinite(o[0]));
  EXPECT_TRUE(std::isnan(o[8 * 3]));
  EXPECT_TRUE(std::isnan(o[8 * 69]));
}

TEST(Attention, NoTokens) {
  TestStream test;
  for (const Problem& problem :
       {make_problem(0, 16, 2, 1, 8, 8, DType::f32), make_problem(2, 0, 2, 1, 8, 8, DType::bf16)}) {
    const Tensors inputs = make_inputs(problem);
    const Tensors outputs = run_forward(test.stream, problem, inputs);
    EXPECT_TRUE(outputs.at("o").values.empty());
    EXPECT_TRUE(run_backward(test.stream, problem, inputs, outputs.at("o")).at("q").values.empty());
    EXPECT_GE(attention_workspace_bytes(problem.shape, problem.dtype, 4, device_kind()), 0);
  }
}

TEST(Attention, WorkspaceBoundHolds) {
  for (const Problem& problem :
       {make_problem(1, 1, 1, 1, 1, 1, DType::f32), make_problem(2, 100, 4, 2, 20, 36, DType::bf16),
        make_problem(1, 300, 8, 1, 16, 16, DType::f32), make_problem(2, 300, 8, 2, 64, 64, DType::bf16)})
    for (int threads : {1, 2, 5}) {
      const int64_t bound = attention_workspace_bytes(problem.shape, problem.dtype, threads, device_kind());
      TestStream test(threads, static_cast<size_t>(bound));
      const Tensors inputs = make_inputs(problem);
      run_backward(test.stream, problem, inputs, run_forward(test.stream, problem, inputs).at("o"));
      const auto peak = static_cast<int64_t>(test.stream.workspace().peak());
      EXPECT_LE(peak, bound) << describe(problem);
      if (!may_go_to_library(problem)) {
        EXPECT_EQ(peak, bound) << describe(problem);
      }
    }
}

TEST(Attention, WrongOperandsAreNamed) {
  TestStream test;
  const AttentionShape shape{1, 4, 2, 1, 8, 8, 1.0f};
  const Owned q = make_output(DType::f32, {4, 2, 8}), k = make_output(DType::f32, {4, 1, 8});
  const Owned v = make_output(DType::bf16, {4, 1, 8}), lse = make_output(DType::f32, {2, 4});
  try {
    attention(test.stream, shape, q.view, k.view, v.view, q.view, lse.view);
    FAIL() << "a bf16 v beside an f32 q was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("v is bf16[4, 1, 8], expected f32[4, 1, 8]"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace mw::test
