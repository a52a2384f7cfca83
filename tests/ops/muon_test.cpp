// Muon's operators against plain loops in double precision.
#include "ops/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/elementwise.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

using Doubles = std::vector<double>;

OpCase momentum_case(int64_t count, DType gradient, bool nesterov, float scale) {
  OpCase c;
  c.name = fmt::format("muon_momentum/{}/{}/{}", name_of(gradient), count, nesterov ? "nesterov" : "plain");
  c.inputs = {{"g", random_tensor("muon.g", {count}, gradient, 0.1f)},
              {"m", random_tensor("muon.m", {count}, DType::f32, 0.1f)}};
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned g = to_operand(inputs.at("g")), m = to_operand(inputs.at("m")), u = make_output(DType::f32, {count});
    muon_momentum(stream, {0.9, nesterov}, 1, scale, g.view, m.view, u.view);
    return Tensors{{"m", to_case_tensor(m)}, {"u", to_case_tensor(u)}};
  };
  c.reference = [=](const Tensors& inputs) {
    Doubles m, u;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const double g = static_cast<double>(inputs.at("g").values[i]) * static_cast<double>(scale);
      m.push_back(0.9 * static_cast<double>(inputs.at("m").values[i]) + 0.1 * g);
      u.push_back(nesterov ? 0.9 * m.back() + 0.1 * g : m.back());
    }
    return std::map<std::string, Doubles>{{"m", m}, {"u", u}};
  };
  c.tolerance = 2e-6;
  c.reason = "a few fp32 roundings";
  return c;
}

OpCase normalise_case(std::vector<int64_t> shape, DType dtype) {
  OpCase c;
  c.name = fmt::format("normalise_matrices/{}/{}x{}x{}", name_of(dtype), shape[0], shape[1], shape[2]);
  c.inputs = {{"x", random_tensor("muon.x", shape, DType::f32, 3.0f)}};
  const auto size = static_cast<size_t>(shape[1] * shape[2]);
  if (shape[0] > 1) std::fill_n(c.inputs.at("x").values.begin(), size, 0.0f);  // the first matrix
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), y = make_output(dtype, shape),
                sums = make_output(DType::f32, {shape[0], kNormParts});
    normalise_matrices(stream, x.view, sums.view, y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.reference = [=](const Tensors& inputs) {
    const std::vector<float>& x = inputs.at("x").values;
    Doubles y(x.size());
    for (size_t begin = 0; begin < x.size(); begin += size) {
      double sum = 0;
      for (size_t i = begin; i < begin + size; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      for (size_t i = begin; i < begin + size; ++i)
        y[i] = static_cast<double>(x[i]) / std::max(std::sqrt(sum), kLeastNorm);
    }
    return std::map<std::string, Doubles>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 2e-6;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "a few fp32 roundings";
  return c;
}

OpCase sum_case(int64_t count, DType dtype) {
  OpCase c;
  c.name = fmt::format("scaled_sum/{}/{}", name_of(dtype), count);
  c.inputs = {{"x", random_tensor("muon.x", {count}, dtype)}, {"y", random_tensor("muon.y", {count}, dtype)}};
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const Owned x = to_operand(inputs.at("x")), y = to_operand(inputs.at("y")), out = make_output(dtype, {count});
    scaled_sum(stream, 1.5f, x.view, -0.25f, y.view, out.view);
    scaled_sum(stream, 1.5f, x.view, -0.25f, y.view, y.view);  // in place
    return Tensors{{"out", to_case_tensor(out)}, {"in place", to_case_tensor(y)}};
  };
  c.reference = [=](const Tensors& inputs) {
    Doubles out;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      out.push_back(1.5 * static_cast<double>(inputs.at("x").values[i]) -
                    0.25 * static_cast<double>(inputs.at("y").values[i]));
    return std::map<std::string, Doubles>{{"out", out}, {"in place", out}};
  };
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 1e-6;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "fp32 roundings";
  return c;
}

// x = a x + (b A + c A A) x with A = x x^T, whatever the shape: the same as from the other side.
Doubles newton_schulz(Doubles x, size_t n, size_t k) {
  const auto multiply = [](const Doubles& a, const Doubles& b, size_t rows, size_t inner, size_t columns) {
    Doubles out(rows * columns);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < inner; ++j)
        for (size_t l = 0; l < columns; ++l) out[i * columns + l] += a[i * inner + j] * b[j * columns + l];
    return out;
  };
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::max(std::sqrt(squares), 1e-7);
  for (int step = 0; step < 5; ++step) {
    Doubles transposed(x.size());
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < k; ++j) transposed[j * n + i] = x[i * k + j];
    const Doubles gram = multiply(x, transposed, n, k, n);
    Doubles sum = multiply(gram, gram, n, n, n);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = -4.775 * gram[i] + 2.0315 * sum[i];
    const Doubles change = multiply(sum, x, n, n, k);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + change[i];
  }
  return x;
}

OpCase orthogonalise_case(int64_t b, int64_t n, int64_t k, DType dtype) {
  OpCase c;
  c.name = fmt::format("orthogonalise/{}/{}x{}x{}", name_of(dtype), b, n, k);
  c.inputs = {{"x", random_tensor("muon.x", {b, n, k}, DType::f32)}};
  const auto size = static_cast<size_t>(n * k);
  if (b > 1) std::fill_n(c.inputs.at("x").values.begin(), size, 0.0f);  // an expert that never had rows
  c.forward = [=](Stream& stream, const Tensors& inputs) {
    const int64_t side = std::min(n, k);
    const Owned x = to_operand(inputs.at("x")), next = make_output(dtype, {b, n, k}),
                gram = make_output(dtype, {b, side, side}), square = make_output(dtype, {b, side, side}),
                sums = make_output(DType::f32, {b * kNormParts});
    const TensorView result = orthogonalise(stream, x.view, dtype, {next.view, gram.view, square.view, sums.view});
    const Owned y = make_output(DType::f32, {b, n, k});
    convert(stream, result, y.view);
    return Tensors{{"y", to_case_tensor(y)}};
  };
  c.reference = [=](const Tensors& inputs) {
    const std::vector<float>& x = inputs.at("x").values;
    Doubles y;
    for (size_t begin = 0; begin < x.size(); begin += size) {
      const Doubles one = newton_schulz(Doubles(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                                x.begin() + static_cast<std::ptrdiff_t>(begin + size)),
                                        static_cast<size_t>(n), static_cast<size_t>(k));
      y.insert(y.end(), one.begin(), one.end());
    }
    return std::map<std::string, Doubles>{{"y", y}};
  };
  c.tolerance = dtype == DType::bf16 ? 0.4 : 2e-4;
  c.reason = "five steps multiply the error of small singular values by up to 480";
  return c;
}

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> cases;
  for (const int64_t count : {1, 77, 20'001})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      cases.push_back(momentum_case(count, dtype, true, 1.0f));
      cases.push_back(momentum_case(count, dtype, false, 0.037f));
      cases.push_back(sum_case(count, dtype));
    }
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{1, 1, 1}, {3, 2, 5}, {2, 8, 8}, {3, 65, 63}, {2, 150, 131}})
      cases.push_back(normalise_case(shape, dtype));
  return cases;
}

TEST(Muon, ElementwisePartsMatchReferences) {
  TestStream test;
  for (const OpCase& c : elementwise_cases()) check_forward(c, test.stream);
  const OffBorders scope;
  for (const OpCase& c : elementwise_cases()) check_forward(c, test.stream);
}

TEST(Muon, ThreadsDoNotChangeBits) {
  check_thread_invariance(momentum_case(30'011, DType::f32, true, 0.5f));
  check_thread_invariance(normalise_case({3, 150, 131}, DType::f32));
  check_thread_invariance(sum_case(40'001, DType::f32));
}

TEST(Orthogonalise, MatchesReference) {
  TestStream test;
  for (const std::vector<int64_t>& s : {std::vector<int64_t>{1, 24, 64},
                                        {1, 64, 24},
                                        {1, 40, 40},
                                        {5, 6, 10},
                                        {4, 10, 6},
                                        {2, 1, 7},
                                        {2, 7, 1},
                                        {3, 70, 33}})
    check_forward(orthogonalise_case(s[0], s[1], s[2], DType::f32), test.stream);
  if (device_kind() == DeviceKind::cpu) return;
  for (const std::vector<int64_t>& s : {std::vector<int64_t>{1, 64, 128}, {3, 192, 64}, {2, 128, 128}})
    check_forward(orthogonalise_case(s[0], s[1], s[2], DType::bf16), test.stream);
}

// A matrix alone has the bits that it has among others.
TEST(Orthogonalise, MatricesDoNotDependOnEachOther) {
  TestStream test;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{20, 36}, {36, 20}}) {
    const OpCase many = orthogonalise_case(4, n, k, DType::f32);
    OpCase one = orthogonalise_case(1, n, k, DType::f32);
    const std::vector<float>& all = many.inputs.at("x").values;
    one.inputs.at("x").values.assign(all.end() - n * k, all.end());
    const std::vector<float> among = many.forward(test.stream, many.inputs).at("y").values;
    EXPECT_EQ(one.forward(test.stream, one.inputs).at("y").values,
              std::vector<float>(among.end() - n * k, among.end()));
  }
}

// Weights in one piece, with a copy, and in halves; updates in f32 and bf16.
TEST(Muon, UpdatesWeightsOfEveryForm) {
  constexpr float kRate = 0.02f, kLr = 0.1f, kDecay = 0.3f;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t count : {0, 1, 77, 20'001}) {
      TestStream test(2);
      const CaseTensor start = random_tensor("muon.w", {count}, DType::f32),
                       change = random_tensor("muon.x", {count}, dtype);
      const Owned x = to_operand(change), whole = to_operand(start), copied = to_operand(start),
                  copy = make_output(DType::bf16, {count}), rest = make_output(DType::u16, {count}),
                  near = make_output(DType::bf16, {count});
      for (int64_t i = 0; i < count; ++i) {
        const SplitFloat parts = split_float(start.values[static_cast<size_t>(i)]);
        near.view.as<bf16>()[i] = parts.near;
        rest.view.as<uint16_t>()[i] = parts.rest;
      }
      muon_update(test.stream, kLr, kDecay, kRate, x.view, whole.view);
      muon_update(test.stream, kLr, kDecay, kRate, x.view, copied.view, copy.view);
      muon_update(test.stream, kLr, kDecay, kRate, x.view, rest.view, near.view);
      wait_for_device();
      EXPECT_EQ(whole.memory, copied.memory);
      Doubles expected;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i)
        expected.push_back(static_cast<double>(start.values[i]) * (1 - 0.03) -
                           0.02 * static_cast<double>(change.values[i]));
      EXPECT_LT(largest_error(to_case_tensor(whole).values, expected), 1e-6);
      for (int64_t i = 0; i < count; ++i) {
        const float w = whole.view.as<float>()[i];
        ASSERT_EQ(join_float(near.view.as<bf16>()[i], rest.view.as<uint16_t>()[i]), w);
        ASSERT_EQ(to_float(copy.view.as<bf16>()[i]), to_float(to_bf16(w)));
      }
    }
}

// bf16 momentum is rounded to one of its neighbours, after what the update takes of it.
TEST(Muon, MomentumInBf16) {
  constexpr int64_t kCount = 5000;
  TestStream test(2);
  const CaseTensor start = random_tensor("muon.m", {kCount}, DType::bf16);
  CaseTensor wide_start = start;
  wide_start.dtype = DType::f32;
  const Owned g = to_operand(random_tensor("muon.g", {kCount}, DType::f32)), m = to_operand(start),
              wide = to_operand(wide_start), u = make_output(DType::f32, {kCount}),
              wide_u = make_output(DType::f32, {kCount});
  muon_momentum(test.stream, {}, 3, 1.0f, g.view, m.view, u.view);
  muon_momentum(test.stream, {}, 3, 1.0f, g.view, wide.view, wide_u.view);
  wait_for_device();
  if (device_kind() == DeviceKind::cpu) {  // a GPU's compiler may fuse operations in one kernel and not in the other
    EXPECT_EQ(u.memory, wide_u.memory);
  }
  const std::vector<float> exact_u = to_case_tensor(wide_u).values;
  EXPECT_LT(largest_error(to_case_tensor(u).values, {exact_u.begin(), exact_u.end()}), 1e-6);
  double drift = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double exact = wide.view.as<float>()[i], rounded = to_float(m.view.as<bf16>()[i]);
    ASSERT_LE(std::abs(rounded - exact), std::abs(exact) * 0x1p-7);
    drift += (rounded - exact) / kCount;
  }
  EXPECT_LT(std::abs(drift), 1e-4);
}

TEST(Muon, MismatchesAreRefused) {
  TestStream test;
  const Owned four = make_output(DType::f32, {4}), half = make_output(DType::bf16, {4}),
              rest = make_output(DType::u16, {4});
  EXPECT_THROW(muon_momentum(test.stream, {}, 0, 1.0f, four.view, four.view, four.view), Error);  // no step
  EXPECT_THROW(muon_update(test.stream, 1, 0, 1, four.view, rest.view), Error);  // without what it is the rest of
  EXPECT_THROW(muon_update(test.stream, 1, 0, 1, four.view, four.view, four.view), Error);
  EXPECT_THROW(scaled_sum(test.stream, 1, four.view, 1, half.view, four.view), Error);
  EXPECT_THROW(orthogonalise(test.stream, four.view, DType::f32, {}), Error);
}

}  // namespace
}  // namespace mw::test
