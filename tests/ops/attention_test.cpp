#include "ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/op_case.h"

namespace mw::test {
namespace {

using Doubles = std::vector<double>;

struct Problem {
  AttentionShape shape;
  DType dtype = DType::f32;
};

Problem make_problem(int64_t sequences, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t head_dim,
                     int64_t value_dim, DType dtype) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return {{sequences, seq_len, heads, kv_heads, head_dim, value_dim, scale}, dtype};
}

std::string describe(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  return fmt::format("attention/{}/{}x{}/{}of{}/{}x{}", name_of(problem.dtype), s.sequences, s.seq_len, s.kv_heads,
                     s.heads, s.head_dim, s.value_dim);
}

// What a GPU's library may take: it rounds probabilities and their gradients to bf16 before it multiplies them.
bool may_go_to_library(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  return device_kind() != DeviceKind::cpu && problem.dtype == DType::bf16 && s.head_dim % 8 == 0 &&
         s.value_dim % 8 == 0;
}

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

Tensors make_inputs(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  const int64_t T = s.sequences * s.seq_len;
  return {{"q", random_tensor("q", {T, s.heads, s.head_dim}, problem.dtype, 1.5f)},
          {"k", random_tensor("k", {T, s.kv_heads, s.head_dim}, problem.dtype, 1.5f)},
          {"v", random_tensor("v", {T, s.kv_heads, s.value_dim}, problem.dtype)}};
}

Tensors run_forward(Stream& stream, const Problem& problem, const Tensors& inputs) {
  const AttentionShape& s = problem.shape;
  const int64_t T = s.sequences * s.seq_len;
  const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), v = to_operand(inputs.at("v"));
  const Owned o = make_output(problem.dtype, {T, s.heads, s.value_dim}), lse = make_output(DType::f32, {s.heads, T});
  attention(stream, s, q.view, k.view, v.view, o.view, lse.view);
  return {{"o", to_case_tensor(o)}, {"lse", to_case_tensor(lse)}};
}

Tensors run_backward(Stream& stream, const Problem& problem, const Tensors& inputs, const CaseTensor& d_output) {
  const AttentionShape& s = problem.shape;
  const Tensors outputs = run_forward(stream, problem, inputs);
  const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), v = to_operand(inputs.at("v"));
  const Owned o = to_operand(outputs.at("o")), lse = to_operand(outputs.at("lse")), d_o = to_operand(d_output);
  const Owned d_q = make_output(problem.dtype, inputs.at("q").shape);
  const Owned d_k = make_output(problem.dtype, inputs.at("k").shape);
  const Owned d_v = make_output(problem.dtype, inputs.at("v").shape);
  attention_backward(stream, s, q.view, k.view, v.view, o.view, lse.view, d_o.view, d_q.view, d_k.view, d_v.view);
  return {{"q", to_case_tensor(d_q)}, {"k", to_case_tensor(d_k)}, {"v", to_case_tensor(d_v)}};
}

// Calls visit(query row, head, probabilities of keys 0..t, log-sum-exp, first key row) for every query.
template <class Visit>
void for_each_query(const AttentionShape& s, const Tensors& inputs, Visit visit) {
  const std::vector<float>&q = inputs.at("q").values, &k = inputs.at("k").values;
  const auto element = [](const std::vector<float>& x, int64_t i) {
    return static_cast<double>(x[static_cast<size_t>(i)]);
  };
  for (int64_t b = 0; b < s.sequences; ++b)
    for (int64_t head = 0; head < s.heads; ++head)
      for (int64_t t = 0; t < s.seq_len; ++t) {
        const int64_t query = (b * s.seq_len + t) * s.heads + head, kv_head = head / (s.heads / s.kv_heads);
        Doubles p;
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t u = 0; u <= t; ++u) {
          const int64_t key = (b * s.seq_len + u) * s.kv_heads + kv_head;
          double score = 0;
          for (int64_t d = 0; d < s.head_dim; ++d)
            score += element(q, query * s.head_dim + d) * element(k, key * s.head_dim + d);
          p.push_back(score * static_cast<double>(s.scale));
          top = std::max(top, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (double& x : p) x /= sum;
        visit(query, b * s.seq_len + t, head, p, top + std::log(sum), b * s.seq_len * s.kv_heads + kv_head);
      }
}

std::map<std::string, Doubles> naive_forward(const AttentionShape& s, const Tensors& inputs) {
  const int64_t T = s.sequences * s.seq_len;
  Doubles o(static_cast<size_t>(T * s.heads * s.value_dim)), lse(static_cast<size_t>(s.heads * T));
  const std::vector<float>& v = inputs.at("v").values;
  for_each_query(s, inputs, [&](int64_t query, int64_t t, int64_t head, const Doubles& p, double log_sum, int64_t key) {
    lse[static_cast<size_t>(head * T + t)] = log_sum;
    for (size_t u = 0; u < p.size(); ++u)
      for (int64_t d = 0; d < s.value_dim; ++d)
        o[static_cast<size_t>(query * s.value_dim + d)] +=
            p[u] * v[static_cast<size_t>((key + static_cast<int64_t>(u) * s.kv_heads) * s.value_dim + d)];
  });
  return {{"o", o}, {"lse", lse}};
}

// The softmax's gradient subtracts sum of p * d_p = o . d_o: here too with the o that the operator is given, which is
// rounded.
std::map<std::string, Doubles> naive_backward(const AttentionShape& s, const Tensors& inputs, const CaseTensor& o,
                                              const CaseTensor& d_o) {
  const std::vector<float>&q = inputs.at("q").values, &k = inputs.at("k").values, &v = inputs.at("v").values;
  Doubles d_q(q.size()), d_k(k.size()), d_v(v.size());
  for_each_query(s, inputs, [&](int64_t query, int64_t, int64_t, const Doubles& p, double, int64_t first_key) {
    Doubles d_p(p.size());
    double mean = 0;
    const auto value_at = [&](size_t u, int64_t d) {
      return static_cast<size_t>((first_key + static_cast<int64_t>(u) * s.kv_heads) * s.value_dim + d);
    };
    for (size_t u = 0; u < p.size(); ++u) {
      for (int64_t d = 0; d < s.value_dim; ++d) {
        const double g = d_o.values[static_cast<size_t>(query * s.value_dim + d)];
        d_p[u] += g * v[value_at(u, d)];
        d_v[value_at(u, d)] += p[u] * g;
      }
    }
    for (int64_t d = 0; d < s.value_dim; ++d) {
      const auto at = static_cast<size_t>(query * s.value_dim + d);
      mean += static_cast<double>(o.values[at]) * static_cast<double>(d_o.values[at]);
    }
    for (size_t u = 0; u < p.size(); ++u) {
      const double d_score = p[u] * (d_p[u] - mean) * static_cast<double>(s.scale);
      for (int64_t d = 0; d < s.head_dim; ++d) {
        const auto key = static_cast<size_t>((first_key + static_cast<int64_t>(u) * s.kv_heads) * s.head_dim + d);
        const auto at = static_cast<size_t>(query * s.head_dim + d);
        d_q[at] += d_score * k[key];
        d_k[key] += d_score * q[at];
      }
    }
  });
  return {{"q", d_q}, {"k", d_k}, {"v", d_v}};
}

// The order of lse is the backend's own.
template <class T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

OpCase make_case(const Problem& problem) {
  OpCase c;
  c.name = describe(problem);
  c.inputs = make_inputs(problem);
  c.forward = [problem](Stream& stream, const Tensors& inputs) {
    Tensors outputs = run_forward(stream, problem, inputs);
    outputs.at("lse").values = sorted(std::move(outputs.at("lse").values));
    return outputs;
  };
  c.backward = [problem](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return run_backward(stream, problem, inputs, d_outputs.at("o"));
  };
  c.reference = [problem](const Tensors& inputs) {
    auto outputs = naive_forward(problem.shape, inputs);
    outputs.at("lse") = sorted(std::move(outputs.at("lse")));
    return outputs;
  };
  c.constant_outputs = {"lse"};
  const bool is_bf16 = problem.dtype == DType::bf16;
  c.tolerance = may_go_to_library(problem) ? 1.6e-2 : is_bf16 ? 4e-3 : 2e-5;
  c.gradient_tolerance = is_bf16 ? 2e-2 : 1e-3;
  c.reason = is_bf16 ? "o is rounded to bf16 (2^-9), and so are a library's probabilities; the gradient uses that o"
                     : "fp32 sums of up to 257 terms and scores of size 10";
  const AttentionShape& s = problem.shape;
  c.flops = 2.0 * static_cast<double>(s.sequences * s.heads * s.seq_len * s.seq_len / 2 * (s.head_dim + s.value_dim));
  return c;
}

TEST(Attention, ForwardMatchesReference) {
  TestStream test;
  for (const Problem& problem : all_problems()) check_forward(make_case(problem), test.stream);
}

TEST(Attention, BackwardMatchesReference) {
  TestStream test;
  for (const Problem& problem : all_problems()) {
    const Tensors inputs = make_inputs(problem);
    const AttentionShape& s = problem.shape;
    const CaseTensor d_o = random_tensor("d_o", {s.sequences * s.seq_len, s.heads, s.value_dim}, problem.dtype);
    const CaseTensor o = run_forward(test.stream, problem, inputs).at("o");
    const Tensors got = run_backward(test.stream, problem, inputs, d_o);
    for (const auto& [name, expected] : naive_backward(s, inputs, o, d_o)) {
      if (s.seq_len == 1 && name != "v") {  // a single key: the probability is 1 whatever q and k are
        for (float x : got.at(name).values) EXPECT_NEAR(x, 0.0f, 1e-5f) << describe(problem) << " d_" << name;
        continue;
      }
      const double tolerance = may_go_to_library(problem) ? 6e-2 : problem.dtype == DType::bf16 ? 4e-3 : 1e-4;
      EXPECT_LE(largest_error(got.at(name).values, expected), tolerance) << describe(problem) << " d_" << name;
    }
  }
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

// The same call again gives the same bits, where a library runs too.
TEST(Attention, RunsAreRepeatable) {
  TestStream test;
  for (const Problem& problem :
       {make_problem(3, 300, 8, 2, 128, 128, DType::bf16), make_problem(1, 256, 4, 4, 64, 64, DType::bf16)}) {
    const AttentionShape& s = problem.shape;
    const Tensors inputs = make_inputs(problem);
    const CaseTensor d_o = random_tensor("d_o", {s.sequences * s.seq_len, s.heads, s.value_dim}, problem.dtype);
    const Tensors first = run_backward(test.stream, problem, inputs, d_o),
                  second = run_backward(test.stream, problem, inputs, d_o);
    for (const char* name : {"q", "k", "v"})
      EXPECT_EQ(first.at(name).values, second.at(name).values) << describe(problem) << " d_" << name;
    EXPECT_EQ(run_forward(test.stream, problem, inputs).at("o").values,
              run_forward(test.stream, problem, inputs).at("o").values);
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
    const auto expected = naive_forward(problem.shape, inputs);
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
