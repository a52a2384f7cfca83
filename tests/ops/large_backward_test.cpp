// Backward operators and the update on tensors of more than 2^31 elements. Sums over all rows are known from those over
// one period: a row read in place of another one would be seen, as each is a share of the sum above the tolerance.
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/columns.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/large_tensors.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace mw::test {
namespace {

constexpr int64_t kPeriods = kRows / kPeriod, kRest = kRows % kPeriod;
constexpr int64_t kN = 4224;  // not the width of x: both cross 2^31 at rows of their own

TensorView first_rows(const Owned& x, int64_t rows) {
  TensorView view = x.view;
  view.shape[0] = rows;
  return view;
}

Owned zeros(std::vector<int64_t> shape) {
  CaseTensor tensor = random_tensor("zeros", std::move(shape), DType::f32);
  std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
  return to_operand(tensor);
}

TEST_F(LargeTensors, RmsNormBackward) {
  const Owned x = random_rows("x", DType::bf16), gain = random_rows("gain", DType::f32, {kWidth}),
              d_y = random_rows("d_y", DType::bf16), residual = random_rows("residual", DType::bf16);
  Owned y = make_output(DType::bf16, {kPeriod, kWidth}), sum = make_output(DType::bf16, {kPeriod, kWidth}),
        rstd = make_output(DType::f32, {kPeriod}), d_x = make_output(DType::bf16, {kPeriod, kWidth}),
        unused = make_output(DType::bf16, {kPeriod, kWidth});
  const Owned whole = zeros({kWidth}), rest = zeros({kWidth}), large = zeros({kWidth});
  add_rms_norm(stream(), x.view, residual.view, gain.view, 1e-6f, sum.view, y.view, rstd.view);
  rms_norm_backward(stream(), sum.view, gain.view, rstd.view, d_y.view, residual.view, d_x.view, whole.view);
  rms_norm_backward(stream(), first_rows(sum, kRest), gain.view, first_rows(rstd, kRest), first_rows(d_y, kRest), {},
                    first_rows(unused, kRest), rest.view);

  const TensorView large_x = repeat(x, kRows), large_residual = repeat(residual, kRows), large_y = unwritten(y, kRows),
                   large_rstd = unwritten(rstd, kRows);
  add_rms_norm(stream(), large_x, large_residual, gain.view, 1e-6f, large_x, large_y, large_rstd);
  expect_repeats(large_x, sum);
  expect_repeats(large_y, y);
  expect_repeats(large_rstd, rstd);
  rms_norm_apply(stream(), large_x, gain.view, large_rstd, large_y);
  expect_repeats(large_y, y);
  const TensorView large_d = repeat(d_y, kRows);
  rms_norm_backward(stream(), large_x, gain.view, large_rstd, large_d, large_residual, large_d, large.view);
  expect_repeats(large_d, d_x);
  expect_sum(large.view, kPeriods, whole, rest, 1e-4);
}

TEST_F(LargeTensors, RowProducts) {
  const Owned a = random_rows("a", DType::bf16), gain = random_rows("gain", DType::f32, {kWidth});
  Owned sums = make_output(DType::f32, {kPeriod});
  row_products(stream(), a.view, a.view, gain.view, sums.view);
  const TensorView large_a = repeat(a, kRows), large_sums = unwritten(sums, kRows);
  row_products(stream(), large_a, large_a, gain.view, large_sums);
  expect_repeats(large_sums, sums);
}

TEST_F(LargeTensors, ClampAndItsBackward) {
  const Owned x = random_rows("x", DType::bf16), d = random_rows("d", DType::bf16), d_x = random_rows("d", DType::bf16);
  Owned y = make_output(DType::bf16, {kPeriod, kWidth});
  clamp(stream(), x.view, 0.5f, y.view);
  clamp_backward(stream(), x.view, 0.5f, d_x.view);
  const TensorView large_x = repeat(x, kRows), large_d = repeat(d, kRows);
  clamp_backward(stream(), large_x, 0.5f, large_d);
  expect_repeats(large_d, d_x);
  clamp(stream(), large_x, 0.5f, large_x);
  expect_repeats(large_x, y);
}

TEST_F(LargeTensors, SumOfSquaresAndFiniteness) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Owned x = random_rows("x", dtype);
    const auto squares = [&](const TensorView& tensor) { return sum_squares(stream(), {&tensor, 1}); };
    const double expected =
        static_cast<double>(kPeriods) * squares(x.view) + (kRest > 0 ? squares(first_rows(x, kRest)) : 0);
    const TensorView large = repeat(x, kRows);
    EXPECT_NEAR(squares(large) / expected, 1, 1e-7) << name_of(dtype);
    EXPECT_TRUE(all_finite(stream(), large));
    const auto bytes = static_cast<size_t>(size_of(dtype));
    const std::vector<std::byte> nan(bytes, std::byte{0xff});
    stream().queue().copy(static_cast<std::byte*>(large.data) + static_cast<size_t>(large.bytes()) - bytes, nan.data(),
                          bytes);
    stream().wait();
    EXPECT_FALSE(all_finite(stream(), large));
  }
}

TEST_F(LargeTensors, Columns) {
  constexpr int64_t kPart = 192, kCopies = 8, kWide = 256;
  constexpr int64_t kTokens = kElements / (kCopies * kWide) + 1000;
  const Owned x = random_rows("x", DType::bf16, {kPeriod, kPart}),
              old = random_rows("old", DType::bf16, {kPeriod, kCopies, kWide}),
              y = random_rows("old", DType::bf16, {kPeriod, kCopies, kWide});
  Owned back = make_output(DType::bf16, {kPeriod, kPart});
  copy_columns(stream(), {x.view, 0}, {y.view, 64}, kPart);
  sum_columns(stream(), {y.view, 64}, {back.view, 0}, kPart);
  const TensorView large_x = repeat(x, kTokens), large_y = repeat(old, kTokens);
  copy_columns(stream(), {large_x, 0}, {large_y, 64}, kPart);
  expect_repeats(large_y, y);
  sum_columns(stream(), {large_y, 64}, {large_x, 0}, kPart);
  expect_repeats(large_x, back);
}

TEST_F(LargeTensors, EmbeddingBackward) {
  const Owned d_y = random_rows("d_y", DType::bf16);
  std::vector<int> names;
  for (int64_t t = 0; t < kPeriod; ++t) names.push_back(static_cast<int>((t * 7 + 3) % kPeriod));
  const Owned ids = to_operand(integer_tensor({kPeriod}, names));
  const Owned whole = zeros({kPeriod, kWidth}), rest = zeros({kPeriod, kWidth}), large = zeros({kPeriod, kWidth});
  embed_backward(stream(), d_y.view, {0, kPeriod}, ids.view, whole.view);
  embed_backward(stream(), first_rows(d_y, kRest), {0, kPeriod}, first_rows(ids, kRest), rest.view);
  embed_backward(stream(), repeat(d_y, kRows), {0, kPeriod}, repeat(ids, kRows), large.view);
  expect_sum(large.view, kPeriods, whole, rest, 1e-4);
}

// Moments are rounded by chance, for which the place counts nothing.
TEST_F(LargeTensors, AdamW) {
  const Owned grad = random_rows("grad", DType::bf16), m = random_rows("m", DType::bf16);
  CaseTensor squares = random_tensor("v", {kPeriod, kWidth}, DType::bf16);
  for (float& value : squares.values) value = std::abs(value);
  const Owned v = to_operand(squares), near = random_rows("w", DType::bf16);
  const Owned ones = to_operand(integer_tensor({kPeriod, kWidth / 2}, std::vector<int>(kPeriod * kWidth / 2, 1)));
  TensorView rest = ones.view;  // the same bytes as halves of weights
  rest.dtype = DType::u16;
  rest.shape[1] = kWidth;
  const TensorView large_grad = repeat(grad, kRows), large_m = repeat(m, kRows), large_v = repeat(v, kRows),
                   large_near = repeat(near, kRows);
  TensorView large_rest = repeat(ones, kRows);
  large_rest.dtype = DType::u16;
  large_rest.shape[1] = kWidth;
  update_by_adamw(stream(), {}, 3, 1e-2f, 0.1f, 0.5f, grad.view, rest, m.view, v.view, near.view);
  update_by_adamw(stream(), {}, 3, 1e-2f, 0.1f, 0.5f, large_grad, large_rest, large_m, large_v, large_near);
  expect_repeats(large_m, m);
  expect_repeats(large_v, v);
  expect_repeats(large_near, near);
  large_rest.dtype = DType::i32;
  large_rest.shape[1] = kWidth / 2;
  expect_repeats(large_rest, ones);
}

class LargeProducts : public LargeTensors {
 protected:
  void SetUp() override {
    LargeTensors::SetUp();
    if (IsSkipped()) return;
    values_ = random_rows("w", DType::f32, {kN, kWidth});
    packed_ = make_output(DType::u8, {packed_weight_bytes(kN, kWidth, true)});
    packed_backward_ = make_output(DType::u8, {packed_weight_bytes(kN, kWidth, true)});
    weight_ = {kN, kWidth, values_.view, packed_.view, packed_backward_.view};
    pack_weight(stream(), weight_);
    const Mirror mirror = mirrored_rows();
    large_index_ = on_device(mirror.large);
    index_ = on_device(mirror.small);
  }

  Weight weight_;
  DeviceVector<int32_t> large_index_, index_;

 private:
  Owned values_, packed_, packed_backward_;
};

TEST_F(LargeProducts, OfExpertsWithoutAnIndex) {
  const Owned x = random_rows("x", DType::bf16);
  Owned y = make_output(DType::bf16, {kPeriod, kN});
  esmm(stream(), {x.view}, std::vector<int64_t>{0, kPeriod}, {&weight_, 1}, {y.view});
  const TensorView large_x = repeat(x, kRows), large_y = unwritten(y, kRows);
  esmm(stream(), {large_x}, std::vector<int64_t>{0, kRows}, {&weight_, 1}, {large_y}, ExpertProducts::grouped);
  expect_repeats(large_y, y, 8e-3);
}

TEST_F(LargeProducts, OfExpertsForInputsScattered) {
  const Owned d_y = random_rows("d_y", DType::bf16, {kPeriod, kN});
  Owned d_x = make_output(DType::bf16, {kPeriod, kWidth});
  esmm_d_input(stream(), {d_y.view}, std::vector<int64_t>{0, kPeriod}, {&weight_, 1}, {d_x.view, index_.data()});
  const TensorView large_d_y = repeat(d_y, kRows);
  for (const ExpertProducts by : {ExpertProducts::grouped, ExpertProducts::per_expert}) {
    const TensorView large_d_x = unwritten(d_x, kRows);
    esmm_d_input(stream(), {large_d_y}, std::vector<int64_t>{0, kRows}, {&weight_, 1}, {large_d_x, large_index_.data()},
                 by);
    expect_repeats(large_d_x, d_x, 8e-3);
  }
}

// Expert 1 has no rows. The last has few, so that those beyond 2^31 elements are most of its sum.
TEST_F(LargeProducts, OfExpertsForWeights) {
  constexpr int64_t kLastRows = kRows % kPeriod + 2 * kPeriod, kBegin = kRows - kLastRows;
  static_assert(kBegin % kPeriod == 0 && kBegin < kElements / kWidth && kBegin < kElements / kN + kPeriod * 30);
  const Owned d_y = random_rows("d_y", DType::bf16, {kPeriod, kN}), x = random_rows("x", DType::bf16);
  const std::vector<int64_t> one{0, kPeriod}, part{0, kRest}, experts{0, kBegin, kBegin, kRows};
  const Owned whole = make_output(DType::f32, {1, kN, kWidth}), rest = make_output(DType::f32, {1, kN, kWidth}),
              none = zeros({1, kN, kWidth}), sums = zeros({1, kN}), sums_of_rest = zeros({1, kN}),
              no_sum = zeros({1, kN});
  estmm(stream(), {d_y.view}, {x.view, index_.data()}, one, whole.view, Store::overwrite);
  estmm(stream(), {d_y.view}, {x.view, index_.data()}, part, rest.view, Store::overwrite);
  ess(stream(), {d_y.view}, one, sums.view);
  ess(stream(), {d_y.view}, part, sums_of_rest.view);
  const TensorView large_d_y = repeat(d_y, kRows), large_x = repeat(x, kRows);
  const auto of_expert = [](const Owned& all, int64_t e) {
    TensorView view = all.view;
    view.shape[0] = 1;
    view.data = static_cast<std::byte*>(view.data) + e * view.bytes();
    return view;
  };
  const auto expect = [&](const Owned& all, const Owned& of_whole, const Owned& of_rest, const Owned& nothing) {
    expect_sum(of_expert(all, 0), kBegin / kPeriod, of_whole, nothing, 2e-3);
    expect_sum(of_expert(all, 1), 0, of_whole, nothing, 0);
    expect_sum(of_expert(all, 2), 2, of_whole, of_rest, 2e-3);
  };
  for (const ExpertProducts by : {ExpertProducts::grouped, ExpertProducts::per_expert}) {
    const Owned all = make_output(DType::f32, {3, kN, kWidth});
    estmm(stream(), {large_d_y}, {large_x, large_index_.data()}, experts, all.view, Store::overwrite, by);
    expect(all, whole, rest, none);
  }
  const Owned all_sums = zeros({3, kN});
  ess(stream(), {large_d_y}, experts, all_sums.view);
  expect(all_sums, sums, sums_of_rest, no_sum);
}

TEST_F(LargeProducts, Dense) {
  const Owned x = random_rows("x", DType::bf16), d_y = random_rows("d_y", DType::bf16, {kPeriod, kN});
  Owned y = make_output(DType::bf16, {kPeriod, kN}), d_x = make_output(DType::bf16, {kPeriod, kWidth});
  const Owned whole = zeros({kN, kWidth}), rest = zeros({kN, kWidth}), large = zeros({kN, kWidth});
  matmul(stream(), x.view, weight_, y.view);
  matmul_d_input(stream(), d_y.view, weight_, d_x.view);
  matmul_d_weight(stream(), d_y.view, x.view, whole.view);
  matmul_d_weight(stream(), first_rows(d_y, kRest), first_rows(x, kRest), rest.view);
  const TensorView large_x = repeat(x, kRows), large_y = unwritten(y, kRows);
  matmul(stream(), large_x, weight_, large_y);
  expect_repeats(large_y, y, 8e-3);
  const TensorView large_d_y = repeat(d_y, kRows);
  matmul_d_weight(stream(), large_d_y, large_x, large.view);
  expect_sum(large.view, kPeriods, whole, rest, 2e-3);  // tensor cores cut off what does not fit a long sum
  matmul_d_input(stream(), large_d_y, weight_, large_x);
  expect_repeats(large_x, d_x, 8e-3);
}

// heads, of keys, width: the vendor's library takes the first, no library the second.
TEST_F(LargeTensors, Attention) {
  struct Heads {
    int64_t count, of_keys, width;
  };
  for (const Heads h : {Heads{32, 8, 128}, Heads{112, 16, 36}}) {
    const int64_t sequences = kElements / (kPeriod * h.count * h.width) + 2, tokens = sequences * kPeriod;
    const float scale = 1 / std::sqrt(static_cast<float>(h.width));
    const AttentionShape one{1, kPeriod, h.count, h.of_keys, h.width, h.width, scale},
        many{sequences, kPeriod, h.count, h.of_keys, h.width, h.width, scale};
    const auto of = [&](const char* name, int64_t heads) {
      return random_rows(name, DType::bf16, {kPeriod, heads, h.width});
    };
    const Owned q = of("q", h.count), k = of("k", h.of_keys), v = of("v", h.of_keys), d_o = of("d_o", h.count);
    const auto output = [&](int64_t heads) { return make_output(DType::bf16, {kPeriod, heads, h.width}); };
    const Owned o = output(h.count), d_q = output(h.count), d_k = output(h.of_keys), d_v = output(h.of_keys),
                lse = make_output(DType::f32, {h.count, kPeriod}),
                many_lse = make_output(DType::f32, {h.count, tokens});
    attention(stream(), one, q.view, k.view, v.view, o.view, lse.view);
    attention_backward(stream(), one, q.view, k.view, v.view, o.view, lse.view, d_o.view, d_q.view, d_k.view, d_v.view);
    const TensorView large_q = repeat(q, tokens), large_k = repeat(k, tokens), large_v = repeat(v, tokens),
                     large_o = unwritten(o, tokens);
    attention(stream(), many, large_q, large_k, large_v, large_o, many_lse.view);
    expect_repeats(large_o, o, 2e-2);
    const TensorView large_d_o = repeat(d_o, tokens), large_d_q = unwritten(d_q, tokens),
                     large_d_k = unwritten(d_k, tokens), large_d_v = unwritten(d_v, tokens);
    attention_backward(stream(), many, large_q, large_k, large_v, large_o, many_lse.view, large_d_o, large_d_q,
                       large_d_k, large_d_v);
    expect_repeats(large_d_q, d_q, 5e-2);
    expect_repeats(large_d_k, d_k, 5e-2);
    expect_repeats(large_d_v, d_v, 5e-2);
  }
}

double square_sum(std::span<const float> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0, std::plus<>(),
                            [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
}

// The largest root mean square of a row's errors over that of the row, or over a tenth of that of all rows where this
// is larger. Gradients of the first keys are a hundred times those of the last.
double largest_row_error(const Owned& got, const Owned& wanted) {
  const std::vector<float> a = to_case_tensor(got).values, b = to_case_tensor(wanted).values;
  const auto width = static_cast<size_t>(wanted.view.cols());
  const double floor = square_sum(b) / static_cast<double>(b.size() / width) / 100;
  double largest = 0;
  std::vector<float> errors(width);
  for (size_t at = 0; at < b.size(); at += width) {
    for (size_t i = 0; i < width; ++i) errors[i] = a[at + i] - b[at + i];
    const double error = square_sum(errors);
    if (!std::isfinite(error)) return error;
    largest = std::max(largest, error / std::max(floor, square_sum({b.data() + at, width})));
  }
  return std::sqrt(largest);
}

// The longest sequence that the library gets where it must be deterministic: it keeps the gradients of scores of a
// head, 2^32 of them, in scratch. The same problem with one document runs on our own kernels, which keep none.
TEST_F(LargeTensors, AttentionOfALongSequence) {
  constexpr int64_t kLength = 1 << 16, kWidth = 192, kValues = 128;
  AttentionShape shape{1, kLength, 1, 1, kWidth, kValues, 1 / std::sqrt(static_cast<float>(kWidth))};
  TestStream test(2, static_cast<size_t>(attention_workspace_bytes(shape, DType::bf16, 2, stream().device().kind)));
  const Owned q = random_rows("q", DType::bf16, {kLength, 1, kWidth}),
              k = random_rows("k", DType::bf16, {kLength, 1, kWidth}),
              v = random_rows("v", DType::bf16, {kLength, 1, kValues}),
              d_o = random_rows("d_o", DType::bf16, {kLength, 1, kValues}),
              first = to_operand(integer_tensor({kLength}, std::vector<int>(kLength)));
  const auto run = [&](bool documents) {
    shape.documents = documents;
    const TensorView first_T = documents ? first.view : TensorView();
    std::vector<Owned> got;
    for (const int64_t width : {kValues, kWidth, kWidth, kValues})
      got.push_back(make_output(DType::bf16, {kLength, 1, width}));
    const Owned lse = make_output(DType::f32, {1, kLength});
    attention(test.stream, shape, q.view, k.view, v.view, got[0].view, lse.view, first_T);
    attention_backward(test.stream, shape, q.view, k.view, v.view, got[0].view, lse.view, d_o.view, got[1].view,
                       got[2].view, got[3].view, first_T);
    test.stream.wait();
    return got;
  };
  const std::vector<Owned> whole = run(false), of_documents = run(true);
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_LE(largest_row_error(whole[i], of_documents[i]), 0.03) << (std::array{"o", "d_q", "d_k", "d_v"}[i]);
}

}  // namespace
}  // namespace mw::test
