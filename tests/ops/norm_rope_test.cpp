#include "ops/norm_rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr float kEps = 1e-5f;

struct Shape {
  int64_t tokens, heads, width, positions, pairs;
  RopePairs pairing = RopePairs::halves;
  bool documents = false;
};

// Angles of positions; the first token's document begins before it where there are documents.
struct Table {
  Owned cosine, sine, first;
  std::vector<int> starts;

  explicit Table(const Shape& s)
      : cosine(make_output(DType::f32, {s.positions, s.pairs})), sine(make_output(DType::f32, {s.positions, s.pairs})) {
    make_rope_table(rope_frequencies(100.0f, s.pairs), 1.0f, cosine.view, sine.view);
    for (int64_t t = 0; t < s.tokens; ++t) starts.push_back(static_cast<int>(t % s.positions / 3 * 2));
    if (s.documents) first = to_operand(integer_tensor({s.tokens}, starts));
  }
  Rotation rotation(const Shape& s) const { return {cosine.view, sine.view, s.pairing, first.view}; }
};

// x by a normal gain, rotated: plain loops in double.
std::vector<double> expected_of(const Shape& s, const std::vector<float>& x, const std::vector<float>& gain) {
  const std::vector<float> frequencies = rope_frequencies(100.0f, s.pairs);
  std::vector<double> y(x.size());
  for (int64_t row = 0; row < s.tokens * s.heads; ++row) {
    const auto begin = static_cast<size_t>(row * s.width);
    double sum = 0;
    for (int64_t i = 0; i < s.width; ++i) sum += std::pow(static_cast<double>(x[begin + static_cast<size_t>(i)]), 2);
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(s.width) + static_cast<double>(kEps));
    for (int64_t i = 0; i < s.width; ++i) {
      const size_t at = begin + static_cast<size_t>(i);
      y[at] = static_cast<double>(gain[static_cast<size_t>(i)]) * static_cast<double>(x[at]) * rstd;
    }
    const int64_t position = row / s.heads % s.positions, start = s.documents ? position / 3 * 2 : 0;
    for (int64_t j = 0; j < s.pairs; ++j) {
      const bool halves = s.pairing == RopePairs::halves;
      const size_t a = begin + static_cast<size_t>(halves ? j : 2 * j),
                   b = begin + static_cast<size_t>(halves ? j + s.pairs : 2 * j + 1);
      const double angle =
          static_cast<double>(position - start) * static_cast<double>(frequencies[static_cast<size_t>(j)]);
      const double left = y[a], right = y[b];
      y[a] = left * std::cos(angle) - right * std::sin(angle);
      y[b] = right * std::cos(angle) + left * std::sin(angle);
    }
  }
  return y;
}

struct Saved {
  Owned y, rstd;
};
Saved run_forward(Stream& stream, const Shape& s, const Tensors& in) {
  const Table table(s);
  const Owned x = to_operand(in.at("x")), gain = to_operand(in.at("gain"));
  Saved saved{make_output(x.view.dtype, in.at("x").shape), make_output(DType::f32, {s.tokens * s.heads})};
  norm_rope(stream, x.view, gain.view, kEps, table.rotation(s), saved.y.view, saved.rstd.view);
  stream.wait();
  return saved;
}

OpCase make_case(const Shape& s, DType dtype) {
  OpCase c;
  c.name = fmt::format("norm_rope/{}/{}x{}x{} by {} pairs", name_of(dtype), s.tokens, s.heads, s.width, s.pairs);
  c.inputs = {{"x", random_tensor("x", {s.tokens, s.heads, s.width}, dtype, 2.0f)},
              {"gain", random_tensor("gain", {s.width}, DType::f32)}};
  c.forward = [s](Stream& stream, const Tensors& in) {
    return Tensors{{"y", to_case_tensor(run_forward(stream, s, in).y)}};
  };
  c.backward = [s](Stream& stream, const Tensors& in, const Tensors& d_out) {
    const Table table(s);
    const Saved saved = run_forward(stream, s, in);
    const Owned x = to_operand(in.at("x")), gain = to_operand(in.at("gain")), d = to_operand(d_out.at("y")),
                d_gain = to_operand({{s.width}, std::vector<float>(static_cast<size_t>(s.width)), DType::f32});
    norm_rope_backward(stream, x.view, gain.view, saved.rstd.view, table.rotation(s), d.view, d_gain.view);
    stream.wait();
    return Tensors{{"x", to_case_tensor(d)}, {"gain", to_case_tensor(d_gain)}};
  };
  c.reference = [s](const Tensors& in) {
    return std::map<std::string, std::vector<double>>{{"y", expected_of(s, in.at("x").values, in.at("gain").values)}};
  };
  c.tolerance = dtype == DType::bf16 ? 2.5e-2 : 1e-5;
  c.gradient_tolerance = dtype == DType::bf16 ? 1.5e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "two roundings to bf16" : "fp32 angles and sums";
  return c;
}

// Heads that have kernels of their own, and others: other widths, neighbouring elements as pairs, a rotated part. GPU
// threads take one head each; a test below has tokens enough for several.
std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Shape& s :
         {Shape{5, 3, 64, 5, 32}, Shape{37, 4, 128, 12, 64}, Shape{33, 1, 128, 11, 64, {}, true}, Shape{9, 2, 10, 3, 5},
          Shape{7, 2, 64, 7, 32, RopePairs::neighbours}, Shape{6, 3, 128, 6, 16}, Shape{0, 2, 64, 4, 32}})
      cases.push_back(make_case(s, dtype));
  return cases;
}

TEST(NormRope, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
  check_forward(make_case({1200, 32, 128, 300, 64}, DType::bf16), test.stream);
}

TEST(NormRope, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(NormRope, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(NormRope, ApplyGivesTheSameBitsInPlace) {
  TestStream test;
  for (const Shape& s : {Shape{37, 4, 128, 12, 64}, Shape{5, 3, 64, 5, 32, {}, true}, Shape{9, 2, 10, 3, 5}}) {
    const OpCase c = make_case(s, DType::bf16);
    const Table table(s);
    const Saved saved = run_forward(test.stream, s, c.inputs);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    norm_rope_apply(test.stream, x.view, gain.view, saved.rstd.view, table.rotation(s), x.view);
    test.stream.wait();
    EXPECT_EQ(to_case_tensor(x).values, to_case_tensor(saved.y).values) << c.name;
  }
}

// The sum over many rows of a gradient of a gain stays near that of the two operators.
TEST(NormRope, BackwardIsNearTheTwoOperators) {
  TestStream test;
  const Shape s{700, 32, 128, 350, 64};
  const OpCase c = make_case(s, DType::bf16);
  const Table table(s);
  const CaseTensor d_y = random_tensor("d", {s.tokens, s.heads, s.width}, DType::bf16);
  const Tensors fused = c.backward(test.stream, c.inputs, {{"y", d_y}});
  const Saved saved = run_forward(test.stream, s, c.inputs);
  const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain")), d = to_operand(d_y),
              d_gain = to_operand({{s.width}, std::vector<float>(static_cast<size_t>(s.width)), DType::f32});
  rope(test.stream, d.view, table.cosine.view, table.sine.view, RopeDirection::backward, d.view);
  rms_norm_backward(test.stream, x.view, gain.view, saved.rstd.view, d.view, {}, d.view, d_gain.view);
  test.stream.wait();
  const auto near = [](const CaseTensor& a, const CaseTensor& b, double tolerance) {
    EXPECT_LE(largest_error(a.values, std::vector<double>(b.values.begin(), b.values.end())), tolerance);
  };
  near(fused.at("x"), to_case_tensor(d), 2e-2);
  near(fused.at("gain"), to_case_tensor(d_gain), 1e-2);
}

}  // namespace
}  // namespace mw::test
