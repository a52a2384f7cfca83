#include "ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/elementwise.h"
#include "support/op_case.h"

namespace mw::test {
namespace {

constexpr float kEps = 1e-5f;

struct Saved {
  Owned y, rstd;
};

Saved run_forward(Stream& stream, const Tensors& inputs) {
  const Owned x = to_operand(inputs.at("x")), gain = to_operand(inputs.at("gain"));
  Saved saved{make_output(x.view.dtype, inputs.at("x").shape), make_output(DType::f32, {x.view.rows()})};
  rms_norm(stream, x.view, gain.view, kEps, saved.y.view, saved.rstd.view);
  return saved;
}

// Gradients of x and gain; d_gain starts at zero.
Tensors run_backward(Stream& stream, const Tensors& inputs, const CaseTensor& d_output) {
  const Saved saved = run_forward(stream, inputs);
  const Owned x = to_operand(inputs.at("x")), gain = to_operand(inputs.at("gain")), d_y = to_operand(d_output);
  const Owned d_x = make_output(x.view.dtype, inputs.at("x").shape);
  CaseTensor zero = inputs.at("gain");
  std::fill(zero.values.begin(), zero.values.end(), 0.0f);
  const Owned d_gain = to_operand(zero);
  rms_norm_backward(stream, x.view, gain.view, saved.rstd.view, d_y.view, {}, d_x.view, d_gain.view);
  return {{"x", to_case_tensor(d_x)}, {"gain", to_case_tensor(d_gain)}};
}

OpCase make_case(std::vector<int64_t> shape, DType dtype) {
  OpCase c;
  const int64_t width = shape.back();
  c.name = fmt::format("rms_norm/{}/..x{}", name_of(dtype), width);
  c.inputs = {{"x", random_tensor("x", shape, dtype, 2.0f)}, {"gain", random_tensor("gain", {width}, DType::f32)}};
  c.forward = [](Stream& stream, const Tensors& inputs) {
    const Saved saved = run_forward(stream, inputs);
    return Tensors{{"y", to_case_tensor(saved.y)}, {"rstd", to_case_tensor(saved.rstd)}};
  };
  c.backward = [](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    return run_backward(stream, inputs, d_outputs.at("y"));
  };
  c.reference = [](const Tensors& inputs) {
    const std::vector<float>&x = inputs.at("x").values, &gain = inputs.at("gain").values;
    const size_t W = gain.size();
    std::vector<double> y(x.size()), rstd(x.size() / W);
    for (size_t r = 0; r < rstd.size(); ++r) {
      double sum = 0;
      for (size_t i = 0; i < W; ++i) sum += std::pow(static_cast<double>(x[r * W + i]), 2);
      rstd[r] = 1.0 / std::sqrt(sum / static_cast<double>(W) + static_cast<double>(kEps));
      for (size_t i = 0; i < W; ++i)
        y[r * W + i] = static_cast<double>(gain[i]) * static_cast<double>(x[r * W + i]) * rstd[r];
    }
    return std::map<std::string, std::vector<double>>{{"y", y}, {"rstd", rstd}};
  };
  c.constant_outputs = {"rstd"};
  c.tolerance = dtype == DType::bf16 ? 4e-3 : 2e-6;
  c.gradient_tolerance = dtype == DType::bf16 ? 1e-2 : 1e-3;
  c.reason = dtype == DType::bf16 ? "one rounding to bf16 (2^-9)" : "a few fp32 roundings";
  return c;
}

std::vector<OpCase> all_cases() {
  using Shape = std::vector<int64_t>;
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{1, 2}, Shape{7, 5}, Shape{130, 31}, Shape{9, 3, 16}, Shape{64}})
      cases.push_back(make_case(shape, dtype));
    // With rows in several groups of threads, and rows of one wave, of one block, and wider than a block holds.
    for (const Shape& shape : {Shape{1100, 7}, Shape{1030, 8}, Shape{3, 12}, Shape{33, 96}, Shape{70, 200}})
      cases.push_back(make_case(shape, dtype));
    for (const Shape& shape : {Shape{5, 320}, Shape{3, 1000}, Shape{3, 2048}, Shape{2, 2056}})
      cases.push_back(make_case(shape, dtype));
    for (const Shape& shape : {Shape{2, 1031}, Shape{2, 8208}}) cases.push_back(make_case(shape, dtype));
  }
  return cases;
}

TEST(RmsNorm, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_forward(c, test.stream);
  // So many rows that a block of a GPU takes several in turn.
  for (DType dtype : {DType::f32, DType::bf16}) check_forward(make_case({4100, 520}, dtype), test.stream);
  // Rows of one element: their gradient is nothing but cancellation.
  for (DType dtype : {DType::f32, DType::bf16}) check_forward(make_case({5, 1}, dtype), test.stream);
}

TEST(RmsNorm, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : all_cases()) check_gradient(c, test.stream);
}

TEST(RmsNorm, TensorsMayStartAnywhere) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Tensors aligned = c.forward(test.stream, c.inputs);
    const OffBorders scope;
    for (const auto& [name, tensor] : c.forward(test.stream, c.inputs))
      EXPECT_EQ(tensor.values, aligned.at(name).values) << c.name << " " << name;
    check_gradient(c, test.stream);
  }
}

TEST(RmsNorm, ThreadsDoNotChangeBits) {
  check_thread_invariance(make_case({333, 77}, DType::f32));
  check_thread_invariance(make_case({3000, 65}, DType::bf16));
}

TEST(RmsNorm, ApplyGivesTheSameBits) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Saved saved = run_forward(test.stream, c.inputs);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    const Owned y = make_output(x.view.dtype, c.inputs.at("x").shape);
    rms_norm_apply(test.stream, x.view, gain.view, saved.rstd.view, y.view);
    wait_for_device();
    EXPECT_EQ(y.memory, saved.y.memory) << c.name;
    rms_norm_apply(test.stream, x.view, gain.view, saved.rstd.view, x.view);
    wait_for_device();
    EXPECT_EQ(x.memory, saved.y.memory) << c.name << " in place";
  }
}

TEST(RmsNorm, AddedBeforeGivesTheBitsOfTwoSteps) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const CaseTensor& shape = c.inputs.at("x");
    const Owned a = to_operand(random_tensor("a", shape.shape, shape.dtype)), b = to_operand(shape),
                gain = to_operand(c.inputs.at("gain")), sum = make_output(shape.dtype, shape.shape);
    add(test.stream, a.view, b.view, sum.view);
    Tensors two_steps = c.inputs;
    two_steps.at("x") = to_case_tensor(sum);
    const Saved expected = run_forward(test.stream, two_steps);
    const Owned y = make_output(shape.dtype, shape.shape), rstd = make_output(DType::f32, {a.view.rows()});
    add_rms_norm(test.stream, a.view, b.view, gain.view, kEps, a.view, y.view, rstd.view);
    wait_for_device();
    EXPECT_EQ(a.memory, sum.memory) << c.name << " over a";
    EXPECT_EQ(y.memory, expected.y.memory) << c.name;
    EXPECT_EQ(rstd.memory, expected.rstd.memory) << c.name;
  }
}

TEST(RmsNorm, InPlaceAndWithoutRstd) {
  TestStream test;
  for (const OpCase& c : all_cases()) {
    const Saved saved = run_forward(test.stream, c.inputs);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    rms_norm(test.stream, x.view, gain.view, kEps, x.view, {});
    wait_for_device();
    EXPECT_EQ(x.memory, saved.y.memory) << c.name;
  }
}

// d_gain is accumulated, d_residual is added, and d_x may take the place of either input gradient.
TEST(RmsNorm, BackwardAccumulatesAndAliases) {
  TestStream test;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const OpCase c = make_case({37, 45}, dtype);
    const Saved saved = run_forward(test.stream, c.inputs);
    const CaseTensor d_y = random_tensor("d_y", {37, 45}, dtype), residual = random_tensor("res", {37, 45}, dtype);
    const Owned x = to_operand(c.inputs.at("x")), gain = to_operand(c.inputs.at("gain"));
    const CaseTensor start = random_tensor("start", {45}, DType::f32);
    const auto run = [&](const Owned& d_out, const Owned& d_res, const Owned& d_in) {
      const Owned d_gain = to_operand(start);
      rms_norm_backward(test.stream, x.view, gain.view, saved.rstd.view, d_out.view, d_res.view, d_in.view,
                        d_gain.view);
      return to_case_tensor(d_gain).values;
    };
    const Owned d_x = make_output(dtype, {37, 45});
    const std::vector<float> d_gain = run(to_operand(d_y), to_operand(residual), d_x);
    const Owned over_d_y = to_operand(d_y), over_residual = to_operand(residual);
    EXPECT_EQ(run(over_d_y, to_operand(residual), over_d_y), d_gain);
    EXPECT_EQ(over_d_y.memory, d_x.memory);
    EXPECT_EQ(run(to_operand(d_y), over_residual, over_residual), d_gain);
    EXPECT_EQ(over_residual.memory, d_x.memory);

    const Tensors plain = run_backward(test.stream, c.inputs, d_y);
    const std::vector<float> with_residual = to_case_tensor(d_x).values;
    std::vector<double> expected_x, expected_gain;
    for (size_t i = 0; i < with_residual.size(); ++i)
      expected_x.push_back(static_cast<double>(plain.at("x").values[i]) + static_cast<double>(residual.values[i]));
    for (size_t i = 0; i < d_gain.size(); ++i)
      expected_gain.push_back(static_cast<double>(plain.at("gain").values[i]) + static_cast<double>(start.values[i]));
    EXPECT_LE(largest_error(with_residual, expected_x), dtype == DType::bf16 ? 2e-2 : 1e-6);
    EXPECT_LE(largest_error(d_gain, expected_gain), 1e-6);
  }
}

TEST(RmsNorm, NoRows) {
  TestStream test;
  const Tensors inputs = {{"x", CaseTensor{{0, 8}, {}, DType::bf16}}, {"gain", random_tensor("gain", {8}, DType::f32)}};
  const Tensors gradients = run_backward(test.stream, inputs, inputs.at("x"));
  EXPECT_EQ(gradients.at("gain").values, std::vector<float>(8, 0.0f));
}

TEST(RmsNorm, WorkspaceBoundHolds) {
  for (int64_t rows : {1, 16, 17, 5000}) {
    TestStream test(2, static_cast<size_t>(norm_workspace_bytes(rows, 33, device_kind())));
    const OpCase c = make_case({rows, 33}, DType::f32);
    run_backward(test.stream, c.inputs, c.inputs.at("x"));
    EXPECT_EQ(static_cast<int64_t>(test.stream.workspace().peak()), norm_workspace_bytes(rows, 33, device_kind()));
    EXPECT_LE(norm_workspace_bytes(rows, 33, device_kind()), (on_gpu() ? 512 : 128) * 33 * 4);
  }
}

TEST(RmsNorm, WrongOperandsAreNamed) {
  TestStream test;
  const Owned x = make_output(DType::f32, {4, 8}), gain = make_output(DType::f32, {7});
  EXPECT_THROW(rms_norm(test.stream, x.view, gain.view, kEps, x.view, {}), Error);
}

// Columns [begin, begin + count) of a tensor's rows.
CaseTensor columns_of(const CaseTensor& whole, size_t begin, size_t count) {
  const auto width = static_cast<size_t>(whole.shape.back());
  CaseTensor part{whole.shape, {}, whole.dtype};
  part.shape.back() = static_cast<int64_t>(count);
  for (size_t at = begin; at + count <= whole.values.size(); at += width)
    part.values.insert(part.values.end(), whole.values.begin() + static_cast<std::ptrdiff_t>(at),
                       whole.values.begin() + static_cast<std::ptrdiff_t>(at + count));
  return part;
}

// What one of several holders of a row has, and what it makes of it.
struct Part {
  size_t begin, count;
  Owned x, gain, y, rstd;

  Part(const Tensors& inputs, size_t first, size_t columns)
      : begin(first),
        count(columns),
        x(to_operand(columns_of(inputs.at("x"), begin, count))),
        gain(to_operand(columns_of(inputs.at("gain"), begin, count))),
        y(make_output(x.view.dtype, to_case_tensor(x).shape)),
        rstd(make_output(DType::f32, {x.view.rows()})) {}

  void put(const Owned& columns, CaseTensor& whole) const {
    const CaseTensor from = to_case_tensor(columns);
    const auto width = static_cast<size_t>(whole.shape.back());
    for (size_t i = 0; i < from.values.size(); ++i)
      whole.values[i / count * width + begin + i % count] += from.values[i];
  }
};

// Parts of very different widths, one of them empty.
std::vector<Part> cut(const Tensors& inputs) {
  const auto width = static_cast<size_t>(inputs.at("gain").values.size());
  const size_t first = (width + 1) / 2, second = first + width / 8;
  std::vector<Part> parts;
  parts.emplace_back(inputs, 0, first);
  parts.emplace_back(inputs, first, 0);
  parts.emplace_back(inputs, first, second - first);
  parts.emplace_back(inputs, second, width - second);
  return parts;
}

CaseTensor zeros_like(CaseTensor tensor) {
  std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
  return tensor;
}

// Sums over all parts of what `products_of` leaves in its second argument.
template <class ProductsOf>
Owned sum_parts(const std::vector<Part>& parts, const ProductsOf& products_of) {
  CaseTensor sum{{parts.front().x.view.rows()}, {}, DType::f32};
  sum.values.resize(static_cast<size_t>(sum.shape[0]));
  for (size_t p = 0; p < parts.size(); ++p) {
    const Owned own = make_output(DType::f32, sum.shape);
    products_of(p, own.view);
    const CaseTensor values = to_case_tensor(own);
    for (size_t r = 0; r < sum.values.size(); ++r) sum.values[r] += values.values[r];
  }
  return to_operand(sum);
}

// copies: how often every column is held.
void run_parts(Stream& stream, std::vector<Part>& parts, int64_t width, int copies = 1) {
  const Owned squares = sum_parts(
      parts, [&](size_t p, TensorView sums) { row_products(stream, parts[p].x.view, parts[p].x.view, {}, sums); });
  for (Part& part : parts)
    rms_norm(stream, part.x.view, part.gain.view, kEps, part.y.view, part.rstd.view, {squares.view, copies * width});
}

Tensors run_parts_backward(Stream& stream, const Tensors& inputs, std::vector<Part>& parts,
                           const std::vector<CaseTensor>& d_outputs, int copies = 1) {
  const int64_t width = inputs.at("x").shape.back();
  run_parts(stream, parts, width, copies);
  std::vector<Owned> d_ys;
  for (size_t p = 0; p < parts.size(); ++p) d_ys.push_back(to_operand(d_outputs[p]));
  const Owned products = sum_parts(parts, [&](size_t p, TensorView sums) {
    row_products(stream, d_ys[p].view, parts[p].x.view, parts[p].gain.view, sums);
  });
  Tensors gradients = {{"x", zeros_like(inputs.at("x"))}, {"gain", zeros_like(inputs.at("gain"))}};
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const Owned d_gain = to_operand(zeros_like(columns_of(inputs.at("gain"), part.begin, part.count)));
    rms_norm_backward(stream, part.x.view, part.gain.view, part.rstd.view, d_ys[p].view, {}, d_ys[p].view, d_gain.view,
                      {products.view, copies * width});
    part.put(d_ys[p], gradients.at("x"));
    part.put(d_gain, gradients.at("gain"));
  }
  return gradients;
}

OpCase make_parts_case(std::vector<int64_t> shape, DType dtype) {
  OpCase c = make_case(std::move(shape), dtype);
  c.name = "parts of " + c.name;
  c.forward = [](Stream& stream, const Tensors& inputs) {
    std::vector<Part> parts = cut(inputs);
    run_parts(stream, parts, inputs.at("x").shape.back());
    CaseTensor y = zeros_like(inputs.at("x"));
    for (const Part& part : parts) {
      part.put(part.y, y);
      EXPECT_EQ(part.rstd.memory, parts.front().rstd.memory);
    }
    return Tensors{{"y", y}, {"rstd", to_case_tensor(parts.front().rstd)}};
  };
  c.backward = [](Stream& stream, const Tensors& inputs, const Tensors& d_outputs) {
    std::vector<Part> parts = cut(inputs);
    std::vector<CaseTensor> d_ys;
    for (const Part& part : parts) d_ys.push_back(columns_of(d_outputs.at("y"), part.begin, part.count));
    return run_parts_backward(stream, inputs, parts, d_ys);
  };
  return c;
}

std::vector<OpCase> parts_cases() {
  using Shape = std::vector<int64_t>;
  std::vector<OpCase> cases;
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Shape& shape : {Shape{1, 2}, Shape{130, 31}, Shape{9, 3, 16}, Shape{70, 200}, Shape{3, 2048},
                               Shape{2, 1031}, Shape{3, 16416}})
      cases.push_back(make_parts_case(shape, dtype));
  return cases;
}

TEST(RmsNormOfParts, ForwardMatchesReference) {
  TestStream test;
  for (const OpCase& c : parts_cases()) check_forward(c, test.stream);
}

TEST(RmsNormOfParts, GradientMatchesFiniteDifferences) {
  TestStream test;
  for (const OpCase& c : parts_cases()) check_gradient(c, test.stream);
}

TEST(RmsNormOfParts, TensorsMayStartAnywhere) {
  TestStream test;
  const OffBorders scope;
  for (const OpCase& c : parts_cases()) {
    check_forward(c, test.stream);
    check_gradient(c, test.stream);
  }
}

TEST(RmsNormOfParts, ThreadsDoNotChangeBits) {
  check_thread_invariance(make_parts_case({333, 77}, DType::f32));
  check_thread_invariance(make_parts_case({3000, 65}, DType::bf16));
}

// Two holders of every column, each with a share of its gradient: together they have the gradient of one.
TEST(RmsNormOfParts, ColumnsHeldTwiceCountOnce) {
  TestStream test;
  const OpCase c = make_case({19, 48}, DType::f32);
  const CaseTensor d_one = random_tensor("one", {19, 48}, DType::f32),
                   d_two = random_tensor("two", {19, 48}, DType::f32);
  CaseTensor d_both = d_one;
  for (size_t i = 0; i < d_both.values.size(); ++i) d_both.values[i] += d_two.values[i];
  const Tensors expected = run_backward(test.stream, c.inputs, d_both);

  std::vector<Part> parts;
  std::vector<CaseTensor> d_ys;
  for (const size_t begin : {size_t{0}, size_t{16}})
    for (const CaseTensor* d_y : {&d_one, &d_two}) {
      const size_t count = begin == 0 ? 16 : 32;
      parts.emplace_back(c.inputs, begin, count);
      d_ys.push_back(columns_of(*d_y, begin, count));
    }
  const Tensors gradients = run_parts_backward(test.stream, c.inputs, parts, d_ys, 2);
  for (const char* name : {"x", "gain"}) {
    const std::vector<float>& values = expected.at(name).values;
    EXPECT_LE(largest_error(gradients.at(name).values, std::vector<double>(values.begin(), values.end())), 2e-6)
        << name;
  }
}

TEST(RmsNormOfParts, NoRows) {
  TestStream test;
  const Tensors inputs = {{"x", CaseTensor{{0, 8}, {}, DType::bf16}}, {"gain", random_tensor("gain", {8}, DType::f32)}};
  std::vector<Part> parts;
  parts.emplace_back(inputs, 0, 8);
  const Tensors gradients = run_parts_backward(test.stream, inputs, parts, {inputs.at("x")});
  EXPECT_EQ(gradients.at("gain").values, std::vector<float>(8, 0.0f));
}

}  // namespace
}  // namespace mw::test
