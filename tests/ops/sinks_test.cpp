// Attention with sinks: against a softmax with one more logit, with and without windows.
#include "ops/sinks.h"

#include "ops/attention_problem.h"

namespace mw::test {
namespace {

// Shorter and longer than the sequence; 0: none.
Problem windowed(Problem problem, int64_t window) {
  problem.shape.documents = window > 0;
  const int64_t S = problem.shape.seq_len;
  for (int64_t t = 0; window > 0 && t < problem.shape.sequences * S; ++t)
    problem.first.push_back(static_cast<int>(std::max<int64_t>(0, t % S - window + 1)));
  return problem;
}

// Above, between and below the log-sum-exps of the heads.
CaseTensor sinks_of(const Problem& problem) {
  CaseTensor sinks = random_tensor("sinks", {problem.shape.heads}, DType::f32, 3.0f);
  sinks.values[0] = 40.0f;
  if (problem.shape.heads > 1) sinks.values[1] = -40.0f;
  return sinks;
}

OpCase make_sink_case(const Problem& problem) {
  OpCase c = make_case(problem);
  c.name = "sinks/" + c.name;
  c.inputs["sinks"] = sinks_of(problem);
  c.forward = [problem](Stream& stream, const Tensors& inputs) {
    const Tensors outputs = run_forward(stream, problem, inputs);
    const Owned o = to_operand(outputs.at("o")), lse = to_operand(outputs.at("lse")),
                sinks = to_operand(inputs.at("sinks"));
    add_sinks(stream, problem.shape, sinks.view, o.view, lse.view);
    CaseTensor all = to_case_tensor(lse);
    all.values = sorted(std::move(all.values));
    return Tensors{{"o", to_case_tensor(o)}, {"lse", all}};
  };
  c.backward = [problem](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    const Tensors outputs = run_forward(stream, problem, inputs);
    const Owned o = to_operand(outputs.at("o")), lse = to_operand(outputs.at("lse")),
                sinks = to_operand(inputs.at("sinks")), d_o = to_operand(d_outputs.at("o"));
    add_sinks(stream, problem.shape, sinks.view, o.view, lse.view);
    const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), v = to_operand(inputs.at("v")),
                first = first_operand(problem);
    const Owned d_q = make_output(problem.dtype, inputs.at("q").shape),
                d_k = make_output(problem.dtype, inputs.at("k").shape),
                d_v = make_output(problem.dtype, inputs.at("v").shape),
                delta = make_output(DType::f32, outputs.at("lse").shape);
    attention_backward(stream, problem.shape, q.view, k.view, v.view, o.view, lse.view, d_o.view, d_q.view, d_k.view,
                       d_v.view, first.view, delta.view);
    CaseTensor sums = inputs.at("sinks");
    std::fill(sums.values.begin(), sums.values.end(), 1.0f);
    const Owned d_sinks = to_operand(sums);
    sinks_backward(stream, problem.shape, problem.dtype, sinks.view, lse.view, delta.view, d_sinks.view);
    sums = to_case_tensor(d_sinks);
    for (float& sum : sums.values) sum -= 1.0f;  // it accumulates
    return Tensors{{"q", to_case_tensor(d_q)}, {"k", to_case_tensor(d_k)}, {"v", to_case_tensor(d_v)}, {"sinks", sums}};
  };
  c.reference = [problem](const Tensors& inputs) {
    const AttentionShape& s = problem.shape;
    const std::vector<float>&v = inputs.at("v").values, &sinks = inputs.at("sinks").values;
    Doubles o(static_cast<size_t>(s.sequences * s.seq_len * s.heads * s.value_dim)), lse;
    for_each_query(
        problem, inputs, [&](int64_t query, int64_t, int64_t head, const Doubles& p, double sum, int64_t key) {
          const auto sink = static_cast<double>(sinks[static_cast<size_t>(head)]);
          const double top = std::max(sum, sink), all = top + std::log(std::exp(sum - top) + std::exp(sink - top));
          lse.push_back(all);
          for (size_t u = 0; u < p.size(); ++u)
            for (int64_t d = 0; d < s.value_dim; ++d)
              o[static_cast<size_t>(query * s.value_dim + d)] +=
                  std::exp(sum - all) * p[u] *
                  static_cast<double>(
                      v[static_cast<size_t>((key + static_cast<int64_t>(u) * s.kv_heads) * s.value_dim + d)]);
        });
    return std::map<std::string, Doubles>{{"o", o}, {"lse", sorted(lse)}};
  };
  if (problem.dtype == DType::bf16 && !may_go_to_library(problem)) c.tolerance = 8e-3;
  c.reason += "; outputs are rounded twice";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t window : {0, 1, 9, 100, 1000}) {
      cases.push_back(make_sink_case(windowed(make_problem(2, 130, 4, 2, 16, 24, dtype), window)));
      cases.push_back(make_sink_case(windowed(make_problem(3, 70, 8, 2, 64, 64, dtype), window)));
      cases.push_back(make_sink_case(windowed(make_problem(1, 33, 1, 1, 5, 3, dtype), window)));
    }
  return cases;
}

TEST(Sinks, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

TEST(Sinks, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t window : {0, 9, 100}) {
      check_gradient(make_sink_case(windowed(make_problem(2, 70, 4, 2, 8, 6, dtype), window)), test.stream);
      check_gradient(make_sink_case(windowed(make_problem(2, 64, 4, 2, 32, 32, dtype), window)), test.stream);
      check_gradient(make_sink_case(windowed(make_problem(2, 40, 4, 2, 64, 64, dtype), window)), test.stream);
    }
}

// Attention itself takes what begins on borders alone, in bf16 on a GPU.
TEST(Sinks, TensorsMayStartAnywhere) {
  TestStream test;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem problem = make_problem(2, 70, 4, 2, 8, 8, dtype);
    const Tensors outputs = run_forward(test.stream, problem, make_inputs(problem));
    const auto add = [&] {
      const Owned o = to_operand(outputs.at("o")), lse = to_operand(outputs.at("lse")),
                  sinks = to_operand(sinks_of(problem));
      add_sinks(test.stream, problem.shape, sinks.view, o.view, lse.view);
      return Tensors{{"o", to_case_tensor(o)}, {"lse", to_case_tensor(lse)}};
    };
    const Tensors on_borders = add();
    const OffBorders scope;
    const Tensors off_borders = add();
    for (const char* name : {"o", "lse"})
      EXPECT_EQ(off_borders.at(name).values, on_borders.at(name).values) << name << " in " << name_of(dtype);
  }
}

TEST(Sinks, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16})
    check_thread_invariance(make_sink_case(make_problem(2, 150, 4, 2, 20, 20, dtype)));
}

}  // namespace
}  // namespace mw::test
