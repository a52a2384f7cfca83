// The fused norm and rotation of GPUs: the very source, run on the CPU, against plain loops.
#include "ops/gpu/norm_rope.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"
#include "emulated/stream.h"

namespace mw {

// What other heads take must not be called here.
void composed_norm_rope(Stream&, TensorView, TensorView, float, const Rotation&, TensorView, TensorView) {
  ADD_FAILURE();
}
void composed_norm_rope_apply(Stream&, TensorView, TensorView, TensorView, const Rotation&, TensorView) {
  ADD_FAILURE();
}
void composed_norm_rope_backward(Stream&, TensorView, TensorView, TensorView, const Rotation&, TensorView, TensorView) {
  ADD_FAILURE();
}

namespace gpu {
namespace {

struct Case {
  int64_t tokens, heads, width, positions;
  int blocks = 0;  // of the backward pass; 0: as many as the operator takes
  bool documents = false;
};

std::vector<float> drawn(int64_t count, const char* name) {
  const RngKey key = make_rng_key(3, name);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(normal_at(key, static_cast<uint64_t>(i)));
  return values;
}
std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> out;
  for (const float value : values) out.push_back(to_bf16(value));
  return out;
}

// Operands, and the results of plain loops in double.
struct Problem {
  Case c;
  int64_t rows = c.tokens * c.heads, pairs = c.width / 2;
  std::vector<bf16> x = rounded(drawn(rows * c.width, "x")), d = rounded(drawn(rows * c.width, "d")), y = x;
  std::vector<float> gain = drawn(c.width, "gain"), d_gain = drawn(c.width, "d_gain");
  std::vector<float> cosine, sine, rstd = std::vector<float>(static_cast<size_t>(rows), NAN);
  std::vector<int32_t> first;
  std::vector<double> expected_y, expected_d, expected_gain{d_gain.begin(), d_gain.end()};

  explicit Problem(const Case& of) : c(of) {
    for (int64_t p = 0; p < c.positions; ++p)
      for (int64_t j = 0; j < pairs; ++j) {
        const double angle =
            static_cast<double>(p) * std::pow(50.0, -static_cast<double>(j) / static_cast<double>(pairs));
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    for (int64_t t = 0; t < c.tokens; ++t) first.push_back(c.documents ? static_cast<int32_t>(t % c.positions / 2) : 0);
    for (int64_t row = 0; row < rows; ++row) expect(row);
  }
  void expect(int64_t row) {
    const int64_t token = row / c.heads, begin = row * c.width;
    const int64_t angles = (token % c.positions - first[static_cast<size_t>(token)]) * pairs;
    const auto value = [&](const std::vector<bf16>& of, int64_t i) {
      return static_cast<double>(to_float(of[static_cast<size_t>(begin + i)]));
    };
    const auto weight = [&](int64_t i) { return static_cast<double>(gain[static_cast<size_t>(i)]); };
    double squares = 0, products = 0;
    for (int64_t i = 0; i < c.width; ++i) squares += value(x, i) * value(x, i);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(c.width) + kEps);
    std::vector<double> n, back(static_cast<size_t>(c.width)), turned(static_cast<size_t>(c.width));
    for (int64_t i = 0; i < c.width; ++i) n.push_back(value(x, i) * inverse);
    for (int64_t j = 0; j < pairs; ++j) {
      const auto a = static_cast<size_t>(j), b = static_cast<size_t>(j + pairs);
      const double cosine_j = static_cast<double>(cosine[static_cast<size_t>(angles + j)]),
                   sine_j = static_cast<double>(sine[static_cast<size_t>(angles + j)]);
      const double left = weight(j) * n[a], right = weight(j + pairs) * n[b];
      turned[a] = left * cosine_j - right * sine_j;
      turned[b] = right * cosine_j + left * sine_j;
      back[a] = value(d, j) * cosine_j + value(d, j + pairs) * sine_j;
      back[b] = value(d, j + pairs) * cosine_j - value(d, j) * sine_j;
    }
    for (int64_t i = 0; i < c.width; ++i)
      products += weight(i) * back[static_cast<size_t>(i)] * n[static_cast<size_t>(i)];
    for (int64_t i = 0; i < c.width; ++i) {
      const auto at = static_cast<size_t>(i);
      expected_y.push_back(turned[at]);
      expected_d.push_back(inverse * (weight(i) * back[at] - n[at] * products / static_cast<double>(c.width)));
      expected_gain[at] += back[at] * n[at];
    }
  }
  static constexpr double kEps = 1e-5;
};

void expect_near(const std::vector<bf16>& got, const std::vector<double>& expected, double tolerance) {
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(static_cast<double>(to_float(got[i])), expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
        << i;
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens of " << c.heads << " heads of " << c.width << ", " << c.blocks
                                  << " blocks, documents " << c.documents);
  Problem p(c);
  emulated::EmulatedStream emulated(4 << 20);
  Stream& stream = emulated.stream;
  const auto heads_in = [&](std::vector<bf16>& of) {
    return TensorView(of.data(), DType::bf16, {c.tokens, c.heads, c.width});
  };
  const TensorView x = heads_in(p.x), y = heads_in(p.y), d = heads_in(p.d), gain(p.gain.data(), DType::f32, {c.width}),
                   d_gain(p.d_gain.data(), DType::f32, {c.width}), rstd(p.rstd.data(), DType::f32, {p.rows});
  const Rotation by{{p.cosine.data(), DType::f32, {c.positions, p.pairs}},
                    {p.sine.data(), DType::f32, {c.positions, p.pairs}},
                    RopePairs::halves,
                    c.documents ? TensorView(p.first.data(), DType::i32, {c.tokens}) : TensorView()};
  const auto eps = static_cast<float>(Problem::kEps);
  gpu::norm_rope(stream, x, gain, eps, by, y, rstd);
  if (c.blocks == 0) {
    gpu::norm_rope_backward(stream, x, gain, rstd, by, d, d_gain);
  } else {
    with_lanes(x, gain, by, y.data, [&](auto lanes) {
      std::vector<float> sums(static_cast<size_t>(c.blocks * c.width), NAN);
      launch(stream, norm_rope_backward_kernel<lanes.value>, c.blocks, kBlock, 0,
             Backward{heads_of(x, gain, by), p.x.data(), p.rstd.data(), p.d.data(), sums.data()});
      add_rows(stream, sums.data(), c.blocks, c.width, p.d_gain.data());
    });
  }
  expect_near(p.y, p.expected_y, 0x1p-6);  // rounded before the rotation, too
  expect_near(p.d, p.expected_d, 0x1p-7);
  for (size_t i = 0; i < p.d_gain.size(); ++i)
    ASSERT_NEAR(static_cast<double>(p.d_gain[i]), p.expected_gain[i], 1e-3 * std::sqrt(static_cast<double>(p.rows)))
        << i;
  std::vector<bf16> again = p.x;
  gpu::norm_rope_apply(stream, heads_in(again), gain, rstd, by, heads_in(again));
  for (size_t i = 0; i < again.size(); ++i) ASSERT_EQ(again[i].bits, p.y[i].bits) << i;
}

TEST(NormRopeKernel, AgreesWithPlainLoops) {
  for (const Case& c : {Case{1, 1, 64, 1}, Case{70, 3, 64, 7}, Case{41, 4, 128, 11}, Case{9, 32, 128, 9, 0, true}})
    check(c);
}

// Units of two heads, the last of them short; more units than groups of threads.
TEST(NormRopeKernel, BlocksTakeSeveralUnits) {
  for (const Case& c : {Case{50, 5, 128, 9, 2}, Case{90, 4, 128, 30, 1, true}, Case{140, 7, 64, 20, 2}}) check(c);
}

TEST(NormRopeKernel, NoTokens) { check({0, 4, 128, 3}); }

}  // namespace
}  // namespace gpu
}  // namespace mw
