#include "ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/op_case.h"

namespace mw::test {
namespace {

struct Types {
  DType logits, gradient;
};
constexpr Types kFloats{DType::f32, DType::f32}, kRounding{DType::f32, DType::bf16}, kHalves{DType::bf16, DType::bf16};
constexpr Types kAllTypes[] = {kFloats, kRounding, kHalves};

// Every third row is ignored; the first and the last class are among the labels.
CaseTensor make_labels(int64_t rows, int64_t classes) {
  std::vector<int> labels;
  for (int64_t c = 0; c < rows; ++c)
    labels.push_back(c % 3 == 2 ? kIgnoreLabel : static_cast<int>(c == 1 ? classes - 1 : c * 5 % classes));
  return integer_tensor({rows}, labels);
}

struct Result {
  std::vector<float> loss, d_logits;
};

Result run(Stream& stream, const CaseTensor& logits, const CaseTensor& labels, float scale, DType gradient) {
  const Owned x = to_operand(logits), y = to_operand(labels);
  const Owned loss = make_output(DType::f32, {logits.shape[0]}), d = make_output(gradient, logits.shape);
  cross_entropy(stream, x.view, y.view, scale, loss.view, d.view);
  return {to_case_tensor(loss).values, to_case_tensor(d).values};
}

// The same with the vocabulary in parts, begin to begin: statistics of each, then loss and gradient of each from all.
// Every part must find the same losses.
using Begins = std::vector<int64_t>;
Result run_parts(Stream& stream, const CaseTensor& logits, const CaseTensor& labels, float scale, DType gradient,
                 const Begins& begins) {
  const int64_t rows = logits.shape[0], vocab = logits.shape[1], parts = std::ssize(begins) - 1;
  const Owned y = to_operand(labels), statistics = make_output(DType::f32, {parts, rows, kSoftmaxStatistics});
  std::vector<Owned> x;
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    CaseTensor columns{{rows, begins[p + 1] - begins[p]}, {}, logits.dtype};
    for (int64_t r = 0; r < rows; ++r)
      columns.values.insert(columns.values.end(), logits.values.begin() + r * vocab + begins[p],
                            logits.values.begin() + r * vocab + begins[p + 1]);
    x.push_back(to_operand(columns));
    softmax_statistics(stream, x.back().view, {begins[p], vocab}, y.view, statistics.view.at(static_cast<int64_t>(p)));
  }
  Result result;
  result.d_logits.resize(logits.values.size());
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    const int64_t columns = begins[p + 1] - begins[p];
    const Owned loss = make_output(DType::f32, {rows}), d = make_output(gradient, {rows, columns});
    cross_entropy_of_part(stream, x[p].view, {begins[p], vocab}, y.view, statistics.view, scale, loss.view, d.view);
    const std::vector<float> losses = to_case_tensor(loss).values, d_columns = to_case_tensor(d).values;
    if (p == 0) result.loss = losses;
    for (size_t r = 0; r < losses.size(); ++r)
      EXPECT_TRUE(losses[r] == result.loss[r] || (std::isnan(losses[r]) && std::isnan(result.loss[r])))
          << p << ": " << r;
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(d_columns.begin() + r * columns, columns, result.d_logits.begin() + r * vocab + begins[p]);
  }
  return result;
}

OpCase make_case(int64_t rows, int64_t classes, Types types, float size = 3.0f, const Begins& begins = {}) {
  const DType gradient = types.gradient;
  const auto run = [begins](Stream& stream, const CaseTensor& logits, const CaseTensor& labels, float scale,
                            DType type) {
    return begins.empty() ? mw::test::run(stream, logits, labels, scale, type)
                          : run_parts(stream, logits, labels, scale, type, begins);
  };
  OpCase c;
  c.name = fmt::format("cross_entropy/{}/{}/{}x{}/{} parts", name_of(types.logits), name_of(gradient), rows, classes,
                       std::max<int64_t>(1, std::ssize(begins) - 1));
  c.inputs = {{"logits", random_tensor("logits", {rows, classes}, types.logits, size)},
              {"labels", make_labels(rows, classes)}};
  c.forward = [gradient, run](Stream& stream, const Tensors& inputs) {
    const Result result = run(stream, inputs.at("logits"), inputs.at("labels"), 1.0f, gradient);
    return Tensors{{"loss", CaseTensor{inputs.at("labels").shape, result.loss, DType::f32}}};
  };
  // The operator seeds all rows alike; the gradient of a weighted sum of losses scales its rows.
  c.backward = [gradient, run](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    CaseTensor d = inputs.at("logits");
    d.values = run(stream, d, inputs.at("labels"), 1.0f, gradient).d_logits;
    const auto V = static_cast<size_t>(d.shape[1]);
    for (size_t i = 0; i < d.values.size(); ++i) d.values[i] *= d_outputs.at("loss").values[i / V];
    return Tensors{{"logits", d}};
  };
  c.reference = [](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("logits").values, &labels = inputs.at("labels").values;
    std::vector<double> loss(labels.size());
    const size_t V = labels.empty() ? 0 : x.size() / labels.size();
    for (size_t r = 0; r < labels.size(); ++r) {
      if (labels[r] < 0) continue;
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (size_t i = 0; i < V; ++i) top = std::max(top, static_cast<double>(x[r * V + i]));
      for (size_t i = 0; i < V; ++i) sum += std::exp(static_cast<double>(x[r * V + i]) - top);
      loss[r] = top + std::log(sum) - static_cast<double>(x[r * V + static_cast<size_t>(labels[r])]);
    }
    return std::map<std::string, std::vector<double>>{{"loss", loss}};
  };
  c.tolerance = 3e-6;
  c.gradient_tolerance = gradient == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = "fp32 exponentials and sums";
  return c;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const Types types : kAllTypes) {
    cases.push_back(make_case(2, 3, types));
    cases.push_back(make_case(13, 67, types));
    cases.push_back(make_case(5, 1000, types));
    cases.push_back(make_case(2, 8204, types));
    cases.push_back(make_case(40, 257, types));
    // In parts: one, unequal ones, some without a column.
    cases.push_back(make_case(13, 67, types, 3.0f, {0, 67}));
    cases.push_back(make_case(13, 67, types, 3.0f, {0, 16, 64, 67}));
    cases.push_back(make_case(2, 3, types, 3.0f, {0, 1, 2, 3, 3, 3}));
    cases.push_back(make_case(5, 1000, types, 3.0f, {0, 0, 500, 1000}));
    cases.push_back(make_case(2, 8204, types, 3.0f, {0, 4100, 8204}));
  }
  return cases;
}

TEST(CrossEntropy, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
}

// A GPU's kernel keeps such rows in shared memory. Without asking it gets 48 KiB, its own arrays included.
// Before the tests of longer rows: what a kernel has asked for, it keeps.
TEST(CrossEntropy, RowsOf48KiBMatchReference) {
  TestStream test;
  for (const Types types : kAllTypes)
    for (const int64_t bytes : {49152 - 128, 49152})
      check_forward(make_case(2, bytes / size_of(types.logits), types), test.stream);
}

// As long as the vocabularies of large models.
TEST(CrossEntropy, LongRowsMatchReference) {
  TestStream test;
  for (const Types types : kAllTypes)
    for (const int64_t classes : {49152, 50001, 151936}) check_forward(make_case(7, classes, types), test.stream);
}

TEST(CrossEntropy, LongRowsHaveTheGradientOfTheReference) {
  TestStream test;
  for (const Types types : kAllTypes)
    for (const int64_t classes : {50001, 151936}) {
      const OpCase c = make_case(2, classes, types);
      const DType gradient = types.gradient;
      const std::vector<float>&x = c.inputs.at("logits").values, &labels = c.inputs.at("labels").values;
      const std::vector<float> d =
          run(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 0.5f, gradient).d_logits;
      for (int64_t row = 0; row < 2; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < classes; ++i) sum += std::exp(static_cast<double>(x[row * classes + i]));
        for (int64_t i = 0; i < classes; ++i) {
          const double expected =
              0.5 * (std::exp(static_cast<double>(x[row * classes + i])) / sum - (i == labels[row]));
          ASSERT_NEAR(d[row * classes + i], expected, std::abs(expected) * (gradient == DType::f32 ? 1e-4 : 4e-3))
              << row << ' ' << i;
        }
      }
    }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(CrossEntropy, TensorsMayStartAnywhere) {
  const OffBorders scope;
  TestStream test;
  for (const OpCase& c : all_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(CrossEntropy, ThreadsDoNotChangeBits) {
  for (const Types types : kAllTypes) {
    check_thread_invariance(make_case(50, 1003, types));
    check_thread_invariance(make_case(50, 1003, types, 3.0f, {0, 600, 1003}));
  }
}

TEST(CrossEntropy, OnePartIsTheWholeToTheBit) {
  TestStream test;
  for (const Types types : kAllTypes)
    for (const int64_t classes : {1003, 49156}) {
      const OpCase c = make_case(50, classes, types);
      const DType gradient = types.gradient;
      const CaseTensor &x = c.inputs.at("logits"), &labels = c.inputs.at("labels");
      const Result whole = run(test.stream, x, labels, 0.25f, gradient),
                   part = run_parts(test.stream, x, labels, 0.25f, gradient, {0, classes});
      EXPECT_EQ(part.loss, whole.loss);
      EXPECT_EQ(part.d_logits, whole.d_logits);
    }
}

TEST(CrossEntropy, PartsScaleAndIgnoreLikeTheWhole) {
  TestStream test;
  const OpCase c = make_case(9, 70, kFloats);
  const CaseTensor &x = c.inputs.at("logits"), &labels = c.inputs.at("labels");
  const Begins begins = {0, 33, 33, 70};
  const Result whole = run(test.stream, x, labels, 0.5f, DType::f32),
               parts = run_parts(test.stream, x, labels, 0.5f, DType::f32, begins);
  for (size_t i = 0; i < whole.d_logits.size(); ++i) {
    EXPECT_NEAR(parts.d_logits[i], whole.d_logits[i], 1e-6f);
    if (i / 70 % 3 == 2) {
      EXPECT_EQ(parts.d_logits[i], 0.0f);
    }
  }
  EXPECT_EQ(parts.loss[2], 0.0f);
}

TEST(CrossEntropy, PartsInPlaceAndWithoutGradient) {
  TestStream test;
  for (const Types types : {kFloats, kHalves}) {
    const OpCase c = make_case(9, 133, types);
    const CaseTensor &logits = c.inputs.at("logits"), &names = c.inputs.at("labels");
    const Result apart = run(test.stream, logits, names, 0.25f, types.gradient);
    const Owned x = to_operand(logits), labels = to_operand(names);
    const Owned loss = make_output(DType::f32, {9}), statistics = make_output(DType::f32, {1, 9, kSoftmaxStatistics});
    softmax_statistics(test.stream, x.view, {0, 133}, labels.view, statistics.view.at(0));
    cross_entropy_of_part(test.stream, x.view, {0, 133}, labels.view, statistics.view, 0.25f, loss.view, {});
    EXPECT_EQ(to_case_tensor(loss).values, apart.loss);
    EXPECT_EQ(to_case_tensor(x).values, logits.values);
    cross_entropy_of_part(test.stream, x.view, {0, 133}, labels.view, statistics.view, 0.25f, loss.view, x.view);
    EXPECT_EQ(to_case_tensor(loss).values, apart.loss);
    EXPECT_EQ(to_case_tensor(x).values, apart.d_logits);
  }
}

TEST(CrossEntropy, GradientIsScaledAndZeroWhereIgnored) {
  TestStream test;
  const OpCase c = make_case(9, 70, kFloats);
  const CaseTensor &x = c.inputs.at("logits"), &labels = c.inputs.at("labels");
  const Result one = run(test.stream, x, labels, 1.0f, DType::f32),
               half = run(test.stream, x, labels, 0.5f, DType::f32);
  for (size_t i = 0; i < one.d_logits.size(); ++i) {
    EXPECT_FLOAT_EQ(half.d_logits[i], 0.5f * one.d_logits[i]);
    if (i / 70 % 3 == 2) {
      EXPECT_EQ(one.d_logits[i], 0.0f);
    }
  }
  EXPECT_EQ(one.loss, half.loss);
  EXPECT_EQ(one.loss[2], 0.0f);
  const Result rounded = run(test.stream, x, labels, 1.0f, DType::bf16);
  for (size_t i = 0; i < one.d_logits.size(); ++i)
    EXPECT_EQ(rounded.d_logits[i], to_float(to_bf16(one.d_logits[i]))) << i;
}

TEST(CrossEntropy, InPlaceAndWithoutGradient) {
  TestStream test;
  for (const Types types : {kFloats, kHalves})
    for (const int64_t classes : {133, 49156, 98312}) {
      const OpCase c = make_case(9, classes, types);
      const Result apart = run(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 0.25f, types.gradient);
      const Owned x = to_operand(c.inputs.at("logits")), labels = to_operand(c.inputs.at("labels"));
      const Owned loss = make_output(DType::f32, {9});
      cross_entropy(test.stream, x.view, labels.view, 0.25f, loss.view, {});
      EXPECT_EQ(to_case_tensor(loss).values, apart.loss);
      EXPECT_EQ(to_case_tensor(x).values, c.inputs.at("logits").values);
      cross_entropy(test.stream, x.view, labels.view, 0.25f, loss.view, x.view);
      EXPECT_EQ(to_case_tensor(loss).values, apart.loss);
      EXPECT_EQ(to_case_tensor(x).values, apart.d_logits);
    }
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  TestStream test;
  for (float size : {1e4f, 1e30f}) {
    for (const Begins& begins : {Begins{}, Begins{0, 40, 99}}) {
      const OpCase c = make_case(12, 99, kFloats, size, begins);
      check_forward(c, test.stream);
      const CaseTensor &x = c.inputs.at("logits"), &labels = c.inputs.at("labels");
      const Result result = begins.empty() ? run(test.stream, x, labels, 1.0f, DType::f32)
                                           : run_parts(test.stream, x, labels, 1.0f, DType::f32, begins);
      for (float d : result.d_logits) ASSERT_TRUE(d >= -1.0f && d <= 1.0f) << d;
    }
  }
}

// A class masked with -inf has probability zero; a NaN logit must reach the loss.
TEST(CrossEntropy, InfinityAndNan) {
  TestStream test;
  OpCase c = make_case(2, 70, kFloats);
  std::vector<float>& x = c.inputs.at("logits").values;
  x[5] = -std::numeric_limits<float>::infinity();
  x[70 + 69] = 1.0f;
  x[70 + 66] = std::numeric_limits<float>::quiet_NaN();
  const Result result = run(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 1.0f, DType::f32);
  EXPECT_TRUE(std::isfinite(result.loss[0]));
  EXPECT_EQ(result.d_logits[5], 0.0f);
  EXPECT_TRUE(std::isnan(result.loss[1]));
  // A part may have nothing but masked classes; the NaN lies in the last one.
  std::fill(x.begin() + 3, x.begin() + 20, -std::numeric_limits<float>::infinity());
  const Result whole = run(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 1.0f, DType::f32),
               parts = run_parts(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 1.0f, DType::f32,
                                 {0, 3, 20, 70});
  EXPECT_NEAR(parts.loss[0], whole.loss[0], 1e-5f);
  EXPECT_EQ(parts.d_logits[5], 0.0f);
  EXPECT_TRUE(std::isnan(parts.loss[1]));
}

// The same where one class of many is left, and where a NaN stands at the end.
TEST(CrossEntropy, InfinityAndNanInLongRows) {
  TestStream test;
  const int64_t classes = 49156;
  OpCase c = make_case(2, classes, kFloats);
  c.inputs.at("labels") = integer_tensor({2}, {49155, 7});
  std::vector<float>& x = c.inputs.at("logits").values;
  std::fill(x.begin(), x.begin() + classes - 1, -std::numeric_limits<float>::infinity());
  x.back() = std::numeric_limits<float>::quiet_NaN();
  const Result result = run(test.stream, c.inputs.at("logits"), c.inputs.at("labels"), 1.0f, DType::f32);
  EXPECT_EQ(result.loss[0], 0.0f);
  EXPECT_EQ(result.d_logits[0], 0.0f);
  EXPECT_EQ(result.d_logits[49155], 0.0f);
  EXPECT_TRUE(std::isnan(result.loss[1]));
}

TEST(CrossEntropy, NoRows) {
  TestStream test;
  const Result result =
      run(test.stream, CaseTensor{{0, 7}, {}, DType::f32}, integer_tensor({0}, {}), 1.0f, DType::bf16);
  EXPECT_TRUE(result.loss.empty());
  const Result parts =
      run_parts(test.stream, CaseTensor{{0, 7}, {}, DType::f32}, integer_tensor({0}, {}), 1.0f, DType::bf16, {0, 4, 7});
  EXPECT_TRUE(parts.loss.empty());
}

TEST(CrossEntropy, LabelOutOfRangeIsNamed) {
  if (on_gpu()) GTEST_SKIP() << "a kernel cannot throw";
  TestStream test;
  const CaseTensor x = random_tensor("logits", {2, 7}, DType::f32);
  for (int label : {-1, 7})
    for (const bool in_parts : {false, true}) {
      const CaseTensor labels = integer_tensor({2}, {0, label});
      try {
        if (in_parts) run_parts(test.stream, x, labels, 1.0f, DType::f32, {0, 4, 7});
        else run(test.stream, x, labels, 1.0f, DType::f32);
        FAIL() << "label " << label << " was accepted";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(fmt::format("row 1 has label {}", label)), std::string::npos)
            << error.what();
      }
    }
}

}  // namespace
}  // namespace mw::test
