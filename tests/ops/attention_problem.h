// Problems of attention for tests: how they are made and run, the plain mathematics in double precision, and checks
// against it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention.h"
#include "support/op_case.h"

namespace mw::test {

using Doubles = std::vector<double>;

struct Problem {
  AttentionShape shape;
  DType dtype = DType::f32;
  std::vector<int> first;  // of every token, with documents
};

inline Problem make_problem(int64_t sequences, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t head_dim,
                            int64_t value_dim, DType dtype) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return {{sequences, seq_len, heads, kv_heads, head_dim, value_dim, scale}, dtype, {}};
}

inline std::string describe(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  const auto documents = std::count_if(problem.first.begin(), problem.first.end(),
                                       [t = 0, &s](int first) mutable { return first == t++ % s.seq_len; });
  return fmt::format("attention/{}/{}x{}/{}of{}/{}x{}{}", name_of(problem.dtype), s.sequences, s.seq_len, s.kv_heads,
                     s.heads, s.head_dim, s.value_dim, s.documents ? fmt::format("/{} documents", documents) : "");
}

// What a GPU's library may take: it rounds probabilities and their gradients to bf16 before it multiplies them.
inline bool may_go_to_library(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  return device_kind() != DeviceKind::cpu && problem.dtype == DType::bf16 && s.head_dim % 8 == 0 &&
         s.value_dim % 8 == 0;
}

// Every token is a sequence or document of its own.
inline bool has_single_keys(const Problem& problem) {
  int64_t t = 0;
  return problem.shape.seq_len == 1 ||
         (problem.shape.documents && std::all_of(problem.first.begin(), problem.first.end(),
                                                 [&](int first) { return first == t++ % problem.shape.seq_len; }));
}

inline Tensors make_inputs(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  const int64_t T = s.sequences * s.seq_len;
  return {{"q", random_tensor("q", {T, s.heads, s.head_dim}, problem.dtype, 1.5f)},
          {"k", random_tensor("k", {T, s.kv_heads, s.head_dim}, problem.dtype, 1.5f)},
          {"v", random_tensor("v", {T, s.kv_heads, s.value_dim}, problem.dtype)}};
}

inline Owned first_operand(const Problem& problem) {
  if (!problem.shape.documents) return {};
  return to_operand(integer_tensor({problem.shape.sequences * problem.shape.seq_len}, problem.first));
}

inline Tensors run_forward(Stream& stream, const Problem& problem, const Tensors& inputs) {
  const AttentionShape& s = problem.shape;
  const int64_t T = s.sequences * s.seq_len;
  const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), v = to_operand(inputs.at("v"));
  const Owned o = make_output(problem.dtype, {T, s.heads, s.value_dim}), lse = make_output(DType::f32, {s.heads, T});
  const Owned first = first_operand(problem);
  attention(stream, s, q.view, k.view, v.view, o.view, lse.view, first.view);
  return {{"o", to_case_tensor(o)}, {"lse", to_case_tensor(lse)}};
}

inline Tensors run_backward(Stream& stream, const Problem& problem, const Tensors& inputs, const CaseTensor& d_output) {
  const AttentionShape& s = problem.shape;
  const Tensors outputs = run_forward(stream, problem, inputs);
  const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), v = to_operand(inputs.at("v"));
  const Owned o = to_operand(outputs.at("o")), lse = to_operand(outputs.at("lse")), d_o = to_operand(d_output);
  const Owned d_q = make_output(problem.dtype, inputs.at("q").shape);
  const Owned d_k = make_output(problem.dtype, inputs.at("k").shape);
  const Owned d_v = make_output(problem.dtype, inputs.at("v").shape);
  const Owned first = first_operand(problem);
  attention_backward(stream, s, q.view, k.view, v.view, o.view, lse.view, d_o.view, d_q.view, d_k.view, d_v.view,
                     first.view);
  return {{"q", to_case_tensor(d_q)}, {"k", to_case_tensor(d_k)}, {"v", to_case_tensor(d_v)}};
}

// Calls visit(query row, head, probabilities of keys 0..t, log-sum-exp, first key row) for every query.
template <class Visit>
void for_each_query(const Problem& problem, const Tensors& inputs, Visit visit) {
  const AttentionShape& s = problem.shape;
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
          const bool hidden = s.documents && u < problem.first[static_cast<size_t>(b * s.seq_len + t)];
          p.push_back(hidden ? -std::numeric_limits<double>::infinity() : score * static_cast<double>(s.scale));
          top = std::max(top, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (double& x : p) x /= sum;
        visit(query, b * s.seq_len + t, head, p, top + std::log(sum), b * s.seq_len * s.kv_heads + kv_head);
      }
}

inline std::map<std::string, Doubles> naive_forward(const Problem& problem, const Tensors& inputs) {
  const AttentionShape& s = problem.shape;
  const int64_t T = s.sequences * s.seq_len;
  Doubles o(static_cast<size_t>(T * s.heads * s.value_dim)), lse(static_cast<size_t>(s.heads * T));
  const std::vector<float>& v = inputs.at("v").values;
  const auto visit = [&](int64_t query, int64_t t, int64_t head, const Doubles& p, double log_sum, int64_t key) {
    lse[static_cast<size_t>(head * T + t)] = log_sum;
    for (size_t u = 0; u < p.size(); ++u)
      for (int64_t d = 0; d < s.value_dim; ++d)
        o[static_cast<size_t>(query * s.value_dim + d)] +=
            p[u] * v[static_cast<size_t>((key + static_cast<int64_t>(u) * s.kv_heads) * s.value_dim + d)];
  };
  for_each_query(problem, inputs, visit);
  return {{"o", o}, {"lse", lse}};
}

// The softmax's gradient subtracts sum of p * d_p = o . d_o: here too with the o that the operator is given, which is
// rounded.
inline std::map<std::string, Doubles> naive_backward(const Problem& problem, const Tensors& inputs, const CaseTensor& o,
                                                     const CaseTensor& d_o) {
  const AttentionShape& s = problem.shape;
  const std::vector<float>&q = inputs.at("q").values, &k = inputs.at("k").values, &v = inputs.at("v").values;
  Doubles d_q(q.size()), d_k(k.size()), d_v(v.size());
  for_each_query(problem, inputs, [&](int64_t query, int64_t, int64_t, const Doubles& p, double, int64_t first_key) {
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

inline OpCase make_case(const Problem& problem) {
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
    auto outputs = naive_forward(problem, inputs);
    outputs.at("lse") = sorted(std::move(outputs.at("lse")));
    return outputs;
  };
  c.constant_outputs = {"lse"};
  const bool is_bf16 = problem.dtype == DType::bf16;
  c.tolerance = may_go_to_library(problem) ? 1.6e-2 : is_bf16 ? 4e-3 : 1e-5;
  c.gradient_tolerance = is_bf16 ? 2e-2 : 1e-3;
  c.reason = is_bf16 ? "o is rounded to bf16 (2^-9), and so are a library's probabilities; the gradient uses that o"
                     : "fp32 sums of up to 257 terms and scores of size 10";
  const AttentionShape& s = problem.shape;
  c.flops = 2.0 * static_cast<double>(s.sequences * s.heads * s.seq_len * s.seq_len / 2 * (s.head_dim + s.value_dim));
  return c;
}

// d_q, d_k and d_v against the plain mathematics.
inline void check_backward(const Problem& problem, Stream& stream) {
  const Tensors inputs = make_inputs(problem);
  const AttentionShape& s = problem.shape;
  const CaseTensor d_o = random_tensor("d_o", {s.sequences * s.seq_len, s.heads, s.value_dim}, problem.dtype);
  const CaseTensor o = run_forward(stream, problem, inputs).at("o");
  const Tensors got = run_backward(stream, problem, inputs, d_o);
  for (const auto& [name, expected] : naive_backward(problem, inputs, o, d_o)) {
    if (has_single_keys(problem) && name != "v") {
      // The probability is 1 whatever q and k are.
      for (float x : got.at(name).values) EXPECT_NEAR(x, 0.0f, 1e-5f) << describe(problem) << " d_" << name;
      continue;
    }
    // In fp32 differences of sums are summed once more.
    const double tolerance = may_go_to_library(problem) ? 6e-2 : problem.dtype == DType::bf16 ? 4e-3 : 2e-5;
    EXPECT_LE(largest_error(got.at(name).values, expected), tolerance) << describe(problem) << " d_" << name;
  }
}

// The same bits a second time, where a library runs too.
inline void check_repeats(const Problem& problem, Stream& stream) {
  const AttentionShape& s = problem.shape;
  const Tensors inputs = make_inputs(problem);
  const CaseTensor d_o = random_tensor("d_o", {s.sequences * s.seq_len, s.heads, s.value_dim}, problem.dtype);
  const Tensors first = run_backward(stream, problem, inputs, d_o), second = run_backward(stream, problem, inputs, d_o);
  for (const char* name : {"q", "k", "v"})
    EXPECT_EQ(first.at(name).values, second.at(name).values) << describe(problem) << " d_" << name;
  EXPECT_EQ(run_forward(stream, problem, inputs).at("o").values, run_forward(stream, problem, inputs).at("o").values);
}

}  // namespace mw::test
