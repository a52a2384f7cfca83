// The largest logits of attention against all logits in double precision.
#include "ops/attention_logits.h"

#include "ops/attention_problem.h"

namespace mw::test {
namespace {

constexpr float kKept = 30.0f;  // what the last head had before

OpCase make_logits_case(const Problem& problem) {
  const AttentionShape& s = problem.shape;
  OpCase c;
  c.name = "largest_" + describe(problem);
  c.inputs = make_inputs(problem);
  std::vector<float> before(static_cast<size_t>(s.heads), kLowestScore);
  if (s.heads > 1) before.back() = kKept;
  c.inputs["before"] = {{s.heads}, before, DType::f32};
  c.forward = [problem](Stream& stream, const Tensors& inputs) {
    const Owned q = to_operand(inputs.at("q")), k = to_operand(inputs.at("k")), first = first_operand(problem),
                largest = to_operand(inputs.at("before"));
    largest_logits(stream, problem.shape, q.view, k.view, largest.view, first.view);
    return Tensors{{"largest", to_case_tensor(largest)}};
  };
  c.reference = [problem](const Tensors& inputs) {
    const AttentionShape& shape = problem.shape;
    const std::vector<float>&q = inputs.at("q").values, &k = inputs.at("k").values, &old = inputs.at("before").values;
    Doubles largest(old.begin(), old.end());
    for (int64_t token = 0; token < shape.sequences * shape.seq_len; ++token)
      for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t sequence = token / shape.seq_len, kv_head = head / (shape.heads / shape.kv_heads);
        const int64_t first = shape.documents ? problem.first[static_cast<size_t>(token)] : 0;
        for (int64_t seen = sequence * shape.seq_len + first; seen <= token; ++seen) {
          double logit = 0;
          for (int64_t d = 0; d < shape.head_dim; ++d)
            logit +=
                static_cast<double>(shape.scale) *
                static_cast<double>(q[static_cast<size_t>((token * shape.heads + head) * shape.head_dim + d)]) *
                static_cast<double>(k[static_cast<size_t>((seen * shape.kv_heads + kv_head) * shape.head_dim + d)]);
          double& most = largest[static_cast<size_t>(head)];
          most = std::max(most, logit);
        }
      }
    return std::map<std::string, Doubles>{{"largest", largest}};
  };
  c.tolerance = 1e-5;
  c.reason = "fp32 sums of up to 192 products; bf16 operands are exact";
  c.flops = static_cast<double>(s.sequences * s.heads * s.seq_len * s.seq_len * s.head_dim);
  return c;
}

// Every token sees at most the `window` keys up to its own, of documents of `length` tokens.
Problem hide_keys(Problem problem, int window, int length) {
  problem.shape.documents = true;
  for (int64_t sequence = 0; sequence < problem.shape.sequences; ++sequence)
    for (int t = 0; t < problem.shape.seq_len; ++t) problem.first.push_back(std::max(t - t % length, t - window + 1));
  return problem;
}

// Sizes at, below and beyond borders of tiles; query heads that share keys; hidden keys before and after borders.
std::vector<Problem> logit_problems() {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    problems.push_back(make_problem(2, 1, 3, 1, 5, 5, dtype));
    problems.push_back(make_problem(1, 64, 1, 1, 16, 16, dtype));
    problems.push_back(make_problem(2, 65, 4, 2, 33, 8, dtype));
    problems.push_back(make_problem(1, 200, 2, 2, 192, 128, dtype));
    problems.push_back(hide_keys(make_problem(2, 70, 2, 1, 8, 8, dtype), 1, 1000));
    problems.push_back(hide_keys(make_problem(1, 257, 4, 4, 20, 12, dtype), 65, 1000));
    problems.push_back(hide_keys(make_problem(2, 200, 2, 1, 64, 64, dtype), 1000, 47));
    problems.push_back(hide_keys(make_problem(1, 300, 2, 2, 16, 16, dtype), 40, 128));
  }
  return problems;
}

TEST(LargestLogits, MatchReference) {
  TestStream test;
  for (const Problem& problem : logit_problems()) check_forward(make_logits_case(problem), test.stream);
}

TEST(LargestLogits, ThreadsDoNotChangeBits) {
  for (const DType dtype : {DType::f32, DType::bf16})
    check_thread_invariance(make_logits_case(hide_keys(make_problem(2, 150, 4, 2, 20, 20, dtype), 70, 100)));
}

// What is beyond a sequence is no logit of 0.
TEST(LargestLogits, MayBeNegative) {
  TestStream test;
  OpCase c = make_logits_case(make_problem(2, 70, 2, 1, 8, 8, DType::f32));
  for (float& x : c.inputs.at("q").values) x = 0.5f + std::abs(x);
  for (float& x : c.inputs.at("k").values) x = -0.5f - std::abs(x);
  check_forward(c, test.stream);
}

}  // namespace
}  // namespace mw::test
