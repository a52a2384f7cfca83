#include "support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/rng.h"

namespace mw::test {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kDirections = 3;
constexpr int64_t kSingleElements = 16;
// Step of the central differences in units of the input's rms: the truncation error is of order 1e-8 of the third
// derivative.
constexpr double kStep = 1e-4;

bool off_borders = false;

using References = std::map<std::string, std::vector<double>>;

int64_t count_elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

bool is_floating(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

float round_to(DType dtype, float value) { return dtype == DType::bf16 ? to_float(to_bf16(value)) : value; }

template <class T>
void store_as(const std::vector<float>& values, std::byte* memory) {
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(memory + i * sizeof(T), &value, sizeof(T));
  }
}

template <class T>
void load_as(const std::byte* memory, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, memory + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(value);
  }
}

template <class T>
double root_mean_square(const std::vector<T>& values) {
  double sum = 0;
  size_t count = 0;
  for (T value : values)
    if (std::isfinite(value)) sum += static_cast<double>(value) * static_cast<double>(value), ++count;
  return count == 0 ? 0 : std::sqrt(sum / static_cast<double>(count));
}

double element_error(double a, double b, double floor) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return kInfinity;
  const double scale = std::max(std::abs(b), floor);
  return scale > 0 ? std::abs(a - b) / scale : kInfinity;
}

struct Worst {
  double error = 0;
  size_t index = 0;
};

Worst find_worst(const std::vector<float>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return {kInfinity, 0};
  const double floor = root_mean_square(b);
  Worst worst;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = element_error(a[i], b[i], floor);
    if (error > worst.error) worst = {error, i};
  }
  return worst;
}

// The scalar L = sum of cotangent * output that the gradient check differentiates.
double evaluate_loss(const OpCase& op_case, const Tensors& inputs, const Tensors& d_outputs) {
  const References outputs = op_case.reference(inputs);
  double loss = 0;
  for (const auto& [name, cotangent] : d_outputs) {
    const std::vector<double>& output = outputs.at(name);
    for (size_t i = 0; i < output.size(); ++i) loss += static_cast<double>(cotangent.values[i]) * output[i];
  }
  return loss;
}

// L(x + step) - L(x - step) with `direction` of the named input as the step, and what the gradient says of it. The
// steps that fp32 inputs really take are used, so that their rounding costs nothing.
struct Difference {
  double numeric = 0;
  double analytic = 0;
  double length = 0;  // Euclidean length of the whole step
};

Difference differentiate(const OpCase& op_case, const Tensors& d_outputs, const std::string& input,
                         const std::vector<float>& gradient, const std::vector<std::pair<size_t, double>>& direction) {
  Tensors plus = op_case.inputs, minus = op_case.inputs;
  std::vector<float>& up = plus.at(input).values;
  std::vector<float>& down = minus.at(input).values;
  Difference result;
  double squares = 0;
  for (const auto& [i, step] : direction) {
    const double centre = up[i];
    up[i] = static_cast<float>(centre + step);
    down[i] = static_cast<float>(centre - step);
    const double taken = static_cast<double>(up[i]) - static_cast<double>(down[i]);
    result.analytic += static_cast<double>(gradient[i]) * taken;
    squares += taken * taken;
  }
  result.length = std::sqrt(squares);
  result.numeric = evaluate_loss(op_case, plus, d_outputs) - evaluate_loss(op_case, minus, d_outputs);
  return result;
}

Tensors make_cotangents(const OpCase& op_case, const Tensors& outputs) {
  Tensors d_outputs;
  for (const auto& entry : op_case.reference(op_case.inputs)) {
    const std::string& name = entry.first;
    const CaseTensor& output = outputs.at(name);
    if (!is_floating(output.dtype) || op_case.constant_outputs.count(name) != 0) continue;
    d_outputs[name] = random_tensor("cotangent." + name, output.shape, output.dtype);
  }
  return d_outputs;
}

void check_directions(const OpCase& op_case, const Tensors& d_outputs, const std::string& name,
                      const std::vector<float>& gradient, double step) {
  double squares = 0;
  for (float value : gradient) squares += static_cast<double>(value) * static_cast<double>(value);
  for (int d = 0; d < kDirections; ++d) {
    const RngKey key = make_rng_key(kSeed, "direction." + name + std::to_string(d));
    std::vector<std::pair<size_t, double>> direction;
    for (size_t i = 0; i < gradient.size(); ++i)
      direction.emplace_back(i, step * static_cast<double>(normal_at(key, i)));
    const Difference got = differentiate(op_case, d_outputs, name, gradient, direction);
    // A random direction of length l changes L by about |g| * l / sqrt(n).
    const double expected = std::sqrt(squares / static_cast<double>(gradient.size())) * got.length;
    const double error = element_error(got.analytic, got.numeric, expected);
    EXPECT_LE(error, op_case.gradient_tolerance)
        << op_case.name << ": gradient of " << name << " along random direction " << d << ": backward says "
        << got.analytic << ", central differences " << got.numeric;
  }
}

void check_single_elements(const OpCase& op_case, const Tensors& d_outputs, const std::string& name,
                           const std::vector<float>& gradient, double step) {
  // First, last, largest, then random ones (all of them in a small tensor).
  const size_t count = gradient.size();
  std::set<size_t> chosen = {0, count - 1};
  chosen.insert(static_cast<size_t>(
      std::max_element(gradient.begin(), gradient.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }) -
      gradient.begin()));
  const size_t wanted = std::min(count, static_cast<size_t>(kSingleElements));
  const RngKey key = make_rng_key(kSeed, "element." + name);
  for (uint64_t i = 0; chosen.size() < wanted; ++i) chosen.insert(static_cast<size_t>(bits_at(key, i) % count));

  const double floor = root_mean_square(gradient);
  for (size_t i : chosen) {
    const Difference got = differentiate(op_case, d_outputs, name, gradient, {{i, step}});
    const double error = element_error(got.analytic, got.numeric, floor * got.length);
    EXPECT_LE(error, op_case.gradient_tolerance)
        << op_case.name << ": gradient of " << name << "[" << i << "]: backward says " << gradient[i]
        << ", central differences " << got.numeric / got.length;
  }
}

void expect_same_bits(const std::string& what, const Tensors& a, const Tensors& b, int threads) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, tensor] : a) {
    const std::vector<float>& other = b.at(name).values;
    ASSERT_EQ(tensor.values.size(), other.size()) << what << " " << name;
    for (size_t i = 0; i < other.size(); ++i)
      ASSERT_EQ(std::memcmp(&tensor.values[i], &other[i], sizeof(float)), 0)
          << what << " " << name << "[" << i << "] is " << tensor.values[i] << " on 1 thread, " << other[i] << " on "
          << threads;
  }
}

}  // namespace

CaseTensor random_tensor(const std::string& name, std::vector<int64_t> shape, DType dtype, float scale) {
  const RngKey key = make_rng_key(kSeed, name);
  CaseTensor tensor{std::move(shape), {}, dtype};
  tensor.values.resize(static_cast<size_t>(count_elements(tensor.shape)));
  for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = round_to(dtype, scale * normal_at(key, i));
  return tensor;
}

CaseTensor integer_tensor(std::vector<int64_t> shape, std::vector<int> values) {
  MW_CHECK(count_elements(shape) == static_cast<int64_t>(values.size()), "{} values for another shape", values.size());
  return CaseTensor{std::move(shape), std::vector<float>(values.begin(), values.end()), DType::i32};
}

OffBorders::OffBorders() { off_borders = true; }
OffBorders::~OffBorders() { off_borders = false; }

Owned make_output(DType dtype, std::vector<int64_t> shape) {
  Owned owned;
  // All ones is a NaN; as an integer it would be -1, which means something to many operators.
  const std::byte unwritten{static_cast<unsigned char>(is_floating(dtype) ? 0xff : 0x7b)};
  const int64_t before = off_borders ? 1 : 0;
  owned.memory.assign(static_cast<size_t>((before + count_elements(shape)) * size_of(dtype)), unwritten);
  owned.view = TensorView(owned.memory.data() + before * size_of(dtype), dtype, std::span<const int64_t>(shape));
  return owned;
}

Owned to_operand(const CaseTensor& tensor) {
  Owned owned = make_output(tensor.dtype, tensor.shape);
  MW_CHECK(owned.view.numel() == static_cast<int64_t>(tensor.values.size()), "{} values for {}", tensor.values.size(),
           owned.view.describe());
  auto* memory = static_cast<std::byte*>(owned.view.data);
  switch (tensor.dtype) {
    case DType::f32: store_as<float>(tensor.values, memory); break;
    case DType::i32: store_as<int32_t>(tensor.values, memory); break;
    case DType::i64: store_as<int64_t>(tensor.values, memory); break;
    case DType::u8: store_as<uint8_t>(tensor.values, memory); break;
    case DType::u16: store_as<uint16_t>(tensor.values, memory); break;
    case DType::bf16:
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const bf16 value = to_bf16(tensor.values[i]);
        std::memcpy(memory + i * sizeof(bf16), &value, sizeof(bf16));
      }
      break;
  }
  return owned;
}

CaseTensor to_case_tensor(const Owned& tensor) {
  wait_for_device();
  const TensorView& view = tensor.view;
  CaseTensor result{std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank), {}, view.dtype};
  result.values.resize(static_cast<size_t>(view.numel()));
  const auto* memory = static_cast<const std::byte*>(view.data);
  switch (view.dtype) {
    case DType::f32: load_as<float>(memory, result.values); break;
    case DType::i32: load_as<int32_t>(memory, result.values); break;
    case DType::i64: load_as<int64_t>(memory, result.values); break;
    case DType::u8: load_as<uint8_t>(memory, result.values); break;
    case DType::u16: load_as<uint16_t>(memory, result.values); break;
    case DType::bf16:
      for (size_t i = 0; i < result.values.size(); ++i) {
        bf16 value;
        std::memcpy(&value, memory + i * sizeof(bf16), sizeof(bf16));
        result.values[i] = to_float(value);
      }
      break;
  }
  return result;
}

TestStream::TestStream(int threads, size_t workspace_bytes, QueueOptions options)
    : memory(static_cast<std::byte*>(allocate_for_device(workspace_bytes)), free_for_device),
      stream(make_stream(threads, options)) {
  // Only a part is filled: touching all of a large workspace would cost more than most tests.
  std::memset(memory.get(), 0xff, std::min(workspace_bytes, size_t{1} << 20));
  stream.workspace().attach(memory.get(), workspace_bytes);
}

double largest_error(const std::vector<float>& a, const std::vector<double>& b) { return find_worst(a, b).error; }

void check_forward(const OpCase& op_case, Stream& stream) {
  const Tensors outputs = op_case.forward(stream, op_case.inputs);
  const References references = op_case.reference(op_case.inputs);
  ASSERT_FALSE(references.empty()) << op_case.name;
  for (const auto& [name, expected] : references) {
    const auto found = outputs.find(name);
    ASSERT_NE(found, outputs.end()) << op_case.name << ": forward returned no " << name;
    const std::vector<float>& got = found->second.values;
    ASSERT_EQ(got.size(), expected.size()) << op_case.name << ": elements of " << name;
    const Worst worst = find_worst(got, expected);
    EXPECT_LE(worst.error, op_case.tolerance)
        << op_case.name << ": " << name << "[" << worst.index << "] is " << got[worst.index] << ", reference "
        << expected[worst.index] << " (" << op_case.reason << ")";
  }
}

void check_gradient(const OpCase& op_case, Stream& stream) {
  ASSERT_TRUE(op_case.backward) << op_case.name;
  const Tensors d_outputs = make_cotangents(op_case, op_case.forward(stream, op_case.inputs));
  const Tensors gradients = op_case.backward(stream, op_case.inputs, d_outputs);
  ASSERT_FALSE(gradients.empty()) << op_case.name;
  for (const auto& [name, gradient] : gradients) {
    const auto input = op_case.inputs.find(name);
    ASSERT_NE(input, op_case.inputs.end()) << op_case.name << ": a gradient of " << name << ", which is no input";
    ASSERT_EQ(gradient.values.size(), input->second.values.size()) << op_case.name << ": gradient of " << name;
    for (size_t i = 0; i < gradient.values.size(); ++i)
      ASSERT_TRUE(std::isfinite(gradient.values[i])) << op_case.name << ": gradient of " << name << "[" << i << "]";
    if (gradient.values.empty()) continue;
    const double rms = root_mean_square(input->second.values);
    const double step = kStep * (rms > 0 ? rms : 1.0);
    check_directions(op_case, d_outputs, name, gradient.values, step);
    check_single_elements(op_case, d_outputs, name, gradient.values, step);
  }
}

void check_thread_invariance(const OpCase& op_case) {
  Tensors outputs, gradients;
  for (int threads = 1; threads <= 3; ++threads) {
    TestStream test(threads);
    const Tensors now = op_case.forward(test.stream, op_case.inputs);
    Tensors gradients_now;
    if (op_case.backward) gradients_now = op_case.backward(test.stream, op_case.inputs, make_cotangents(op_case, now));
    if (threads == 1) {
      outputs = now;
      gradients = gradients_now;
      continue;
    }
    expect_same_bits(op_case.name + ": output", outputs, now, threads);
    expect_same_bits(op_case.name + ": gradient of", gradients, gradients_now, threads);
  }
}

}  // namespace mw::test
