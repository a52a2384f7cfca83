// Forward operators on tensors of more than 2^31 elements.
#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/index.h"
#include "ops/large_tensors.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/token_layout.h"

namespace mw::test {
namespace {

TEST_F(LargeTensors, ConvertAndAdd) {
  const Owned x = random_rows("x", DType::f32);
  Owned y = make_output(DType::bf16, {kPeriod, kWidth}), sum = make_output(DType::bf16, {kPeriod, kWidth});
  convert(stream(), x.view, y.view);
  add(stream(), y.view, y.view, sum.view);
  const TensorView large_y = unwritten(y, kRows);
  convert(stream(), repeat(x, kRows), large_y);
  expect_repeats(large_y, y);
  add(stream(), large_y, large_y, large_y);
  expect_repeats(large_y, sum);
}

TEST_F(LargeTensors, RmsNorm) {
  const Owned x = random_rows("x", DType::bf16), gain = random_rows("gain", DType::f32, {kWidth});
  Owned y = make_output(DType::bf16, {kPeriod, kWidth}), rstd = make_output(DType::f32, {kPeriod});
  rms_norm(stream(), x.view, gain.view, 1e-6f, y.view, rstd.view);
  const TensorView large_y = unwritten(y, kRows), large_rstd = unwritten(rstd, kRows);
  rms_norm(stream(), repeat(x, kRows), gain.view, 1e-6f, large_y, large_rstd);
  expect_repeats(large_y, y);
  expect_repeats(large_rstd, rstd);
}

TEST_F(LargeTensors, ActivationAndItsBackward) {
  const Owned h = random_rows("h", DType::bf16, {kPeriod, 2, kWidth / 2}),
              d_a = random_rows("d_a", DType::bf16, {kPeriod, kWidth / 2}),
              weight = random_rows("weight", DType::f32, {kPeriod});
  Owned a = make_output(DType::bf16, {kPeriod, kWidth / 2}), scaled = make_output(DType::bf16, {kPeriod, kWidth / 2}),
        d_h = make_output(DType::bf16, {kPeriod, 2, kWidth / 2}), d_weight = make_output(DType::f32, {kPeriod});
  activate(stream(), Activation::swiglu, h.view, a.view);
  activate_backward(stream(), Activation::swiglu, h.view, d_a.view, weight.view, d_h.view, scaled.view, d_weight.view);
  const TensorView large_h = repeat(h, kRows), large_a = unwritten(a, kRows),
                   large_d_weight = unwritten(d_weight, kRows);
  activate(stream(), Activation::swiglu, large_h, large_a);
  expect_repeats(large_a, a);
  const TensorView large_d_a = repeat(d_a, kRows);
  // In place, as the layer has it.
  activate_backward(stream(), Activation::swiglu, large_h, large_d_a, repeat(weight, kRows), large_h, large_d_a,
                    large_d_weight);
  expect_repeats(large_h, d_h);
  expect_repeats(large_d_a, scaled);
  expect_repeats(large_d_weight, d_weight);
}

TEST_F(LargeTensors, GatherRows) {
  const Mirror mirror = mirrored_rows();
  const DeviceVector<int32_t> large_index = on_device(mirror.large), index = on_device(mirror.small);
  const Owned x = random_rows("x", DType::bf16);
  Owned y = make_output(DType::bf16, {kPeriod, kWidth});
  gather_rows(stream(), x.view, index.data(), kPeriod, y.view);
  const TensorView large_y = unwritten(y, kRows);
  gather_rows(stream(), repeat(x, kRows), large_index.data(), kRows, large_y);
  expect_repeats(large_y, y);
}

TEST_F(LargeTensors, CombineRows) {
  const Mirror mirror = mirrored_rows();
  DeviceVector<int32_t> large_index, index;
  for (int64_t r = 0; r < kRows; ++r) {
    const auto at = static_cast<size_t>(r);
    large_index.insert(large_index.end(), {static_cast<int32_t>(r), mirror.large[at]});
    if (r < kPeriod) index.insert(index.end(), {static_cast<int32_t>(r), mirror.small[at]});
  }
  const Owned y = random_rows("y", DType::bf16), weights = random_rows("weights", DType::f32, {kPeriod, 2});
  Owned out = make_output(DType::bf16, {kPeriod, kWidth});
  combine_rows(stream(), y.view, view_of(index, {kPeriod, 2}), weights.view, y.view, out.view);
  const TensorView large_y = repeat(y, kRows), large_out = unwritten(out, kRows);
  combine_rows(stream(), large_y, view_of(large_index, {kRows, 2}), repeat(weights, kRows), large_y, large_out);
  expect_repeats(large_out, out);
}

// An index names 2^31 values at most, but there may be more of them.
TEST_F(LargeTensors, GatherValues) {
  const Owned values = random_rows("values", DType::f32, {kPeriod});
  std::vector<int> names;
  for (int64_t i = 0; i < kPeriod; ++i)
    names.push_back(static_cast<int>((i * 7 + 3) % kPeriod) - (i % 5 == 0 ? 700 : 0));
  const Owned index = to_operand(integer_tensor({kPeriod}, names));
  Owned out = make_output(DType::f32, {kPeriod});
  gather_values(stream(), values.view, index.view, out.view);
  const int64_t count = kElements + 1000;
  const TensorView large_out = unwritten(out, count);
  gather_values(stream(), values.view, repeat(index, count), large_out);
  expect_repeats(large_out, out);
}

TEST_F(LargeTensors, Rope) {
  const Owned x = random_rows("x", DType::bf16, {kPeriod, kWidth / 128, 128}),
              cosine = random_rows("cos", DType::f32, {kPeriod, 64}),
              sine = random_rows("sin", DType::f32, {kPeriod, 64});
  Owned y = make_output(DType::bf16, {kPeriod, kWidth / 128, 128});
  rope(stream(), x.view, cosine.view, sine.view, RopeDirection::forward, y.view);
  const TensorView large_x = repeat(x, kRows);
  rope(stream(), large_x, cosine.view, sine.view, RopeDirection::forward, large_x);
  expect_repeats(large_x, y);
}

TEST_F(LargeTensors, Embedding) {
  const Owned table = random_rows("table", DType::f32);
  std::vector<int> names;
  for (int64_t t = 0; t < kPeriod; ++t) names.push_back(static_cast<int>((t * 7 + 3) % kPeriod));
  const Owned ids = to_operand(integer_tensor({kPeriod}, names));
  Owned y = make_output(DType::bf16, {kPeriod, kWidth});
  embed(stream(), table.view, {0, kPeriod}, ids.view, y.view);
  const TensorView large_y = unwritten(y, kRows);
  embed(stream(), table.view, {0, kPeriod}, repeat(ids, kRows), large_y);
  expect_repeats(large_y, y);
}

TEST_F(LargeTensors, CrossEntropy) {
  constexpr int64_t kVocab = 151'936, kLabels = 96, kCount = kElements / kVocab + 2 * kLabels;
  const Owned logits = random_rows("logits", DType::f32, {kLabels, kVocab});
  std::vector<int> names;
  for (int64_t t = 0; t < kLabels; ++t)
    names.push_back(t % 7 == 3 ? kIgnoreLabel : static_cast<int>(t * 1583 % kVocab));
  const Owned labels = to_operand(integer_tensor({kLabels}, names));
  Owned loss = make_output(DType::f32, {kLabels}), d_logits = make_output(DType::bf16, {kLabels, kVocab});
  cross_entropy(stream(), logits.view, labels.view, 0.5f, loss.view, d_logits.view);
  const TensorView large_loss = unwritten(loss, kCount), large_d_logits = unwritten(d_logits, kCount);
  cross_entropy(stream(), repeat(logits, kCount), repeat(labels, kCount), 0.5f, large_loss, large_d_logits);
  expect_repeats(large_loss, loss);
  expect_repeats(large_d_logits, d_logits);
}

// The middle part of a vocabulary three times as large, and statistics of this part alone.
TEST_F(LargeTensors, CrossEntropyOfAPart) {
  constexpr int64_t kColumns = 75'968, kLabels = 96, kCount = kElements / kColumns + 2 * kLabels;
  constexpr VocabPart kPart{kColumns, 3 * kColumns};
  const Owned logits = random_rows("logits", DType::f32, {kLabels, kColumns});
  std::vector<int> names;
  for (int64_t t = 0; t < kLabels; ++t)
    names.push_back(t % 7 == 3 ? kIgnoreLabel : static_cast<int>(kColumns + t * 1583 % kColumns));
  const Owned labels = to_operand(integer_tensor({kLabels}, names));
  Owned statistics = make_output(DType::f32, {kLabels, kSoftmaxStatistics}), loss = make_output(DType::f32, {kLabels}),
        d_logits = make_output(DType::bf16, {kLabels, kColumns});
  softmax_statistics(stream(), logits.view, kPart, labels.view, statistics.view);
  cross_entropy_of_part(stream(), logits.view, kPart, labels.view,
                        statistics.view.reshape({1, kLabels, kSoftmaxStatistics}), 0.5f, loss.view, d_logits.view);
  const TensorView large_logits = repeat(logits, kCount), large_labels = repeat(labels, kCount),
                   large_statistics = unwritten(statistics, kCount), large_loss = unwritten(loss, kCount),
                   large_d_logits = unwritten(d_logits, kCount);
  softmax_statistics(stream(), large_logits, kPart, large_labels, large_statistics);
  cross_entropy_of_part(stream(), large_logits, kPart, large_labels,
                        large_statistics.reshape({1, kCount, kSoftmaxStatistics}), 0.5f, large_loss, large_d_logits);
  expect_repeats(large_statistics, statistics);
  expect_repeats(large_loss, loss);
  expect_repeats(large_d_logits, d_logits);
}

// A tile of few rows may be another kernel's: equal up to a unit of bf16.
TEST_F(LargeTensors, ExpertProductsOfGatheredRows) {
  const Mirror mirror = mirrored_rows();
  const DeviceVector<int32_t> large_index = on_device(mirror.large), index = on_device(mirror.small);
  constexpr int64_t kN = 4224;  // not the width of x: both cross 2^31 at rows of their own
  const Owned values = random_rows("w", DType::f32, {kN, kWidth}), x = random_rows("x", DType::bf16);
  Owned packed = make_output(DType::u8, {packed_weight_bytes(kN, kWidth, true)});
  const Weight weight{kN, kWidth, values.view, packed.view, packed.view};
  pack_weight(stream(), weight);
  Owned y = make_output(DType::bf16, {kPeriod, kN});
  esmm(stream(), {x.view, index.data()}, std::vector<int64_t>{0, kPeriod}, {&weight, 1}, {y.view});
  const TensorView large_x = repeat(x, kRows);
  for (const ExpertProducts by : {ExpertProducts::grouped, ExpertProducts::per_expert}) {
    const TensorView large_y = unwritten(y, kRows);
    esmm(stream(), {large_x, large_index.data()}, std::vector<int64_t>{0, kRows}, {&weight, 1}, {large_y}, by);
    expect_repeats(large_y, y, 8e-3);
  }
}

}  // namespace
}  // namespace mw::test
