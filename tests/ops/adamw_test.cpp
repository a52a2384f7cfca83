#include "ops/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "support/op_case.h"

namespace mw::test {
namespace {

// The formula of the paper in double precision, step by step.
struct PlainAdamW {
  double beta1, beta2, eps;
  std::vector<double> w, m, v;

  void step(int64_t step, double lr, double decay, double scale, const std::vector<float>& gradient) {
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = static_cast<double>(gradient[i]) * scale;
      w[i] -= lr * decay * w[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, static_cast<double>(step)));
      const double v_hat = v[i] / (1 - std::pow(beta2, static_cast<double>(step)));
      w[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
    }
  }
};

void check_steps(int64_t count, const AdamW& rule, float decay, float grad_scale, int threads) {
  SCOPED_TRACE(fmt::format("{} elements, decay {}, scale {}, {} threads", count, decay, grad_scale, threads));
  TestStream test(threads);
  const CaseTensor start = random_tensor("adamw.w", {count}, DType::f32);
  const Owned w = to_operand(start), m = make_output(DType::f32, {count}), v = make_output(DType::f32, {count});
  std::fill_n(m.view.as<float>(), count, 0.0f);
  std::fill_n(v.view.as<float>(), count, 0.0f);
  const auto size = static_cast<size_t>(count);
  PlainAdamW plain{rule.beta1,
                   rule.beta2,
                   rule.eps,
                   {start.values.begin(), start.values.end()},
                   std::vector<double>(size),
                   std::vector<double>(size)};
  for (int64_t step = 1; step <= 20; ++step) {
    CaseTensor gradient = random_tensor("adamw.g" + std::to_string(step), {count}, DType::f32, 0.1f);
    for (size_t i = 0; i < size; i += 5) gradient.values[i] = 0.0f;  // an expert without rows
    const float lr = 1e-3f * static_cast<float>(step);
    update_by_adamw(test.stream, rule, step, lr, decay, grad_scale, to_operand(gradient).view, w.view, m.view, v.view);
    plain.step(step, lr, decay, grad_scale, gradient.values);
    ASSERT_LT(largest_error(to_case_tensor(w).values, plain.w), 2e-6) << "weights at step " << step;
    ASSERT_LT(largest_error(to_case_tensor(m).values, plain.m), 2e-6) << "first moment at step " << step;
    ASSERT_LT(largest_error(to_case_tensor(v).values, plain.v), 2e-6) << "second moment at step " << step;
  }
}

TEST(AdamW, TwentyStepsAgreeWithTheFormula) {
  for (int64_t count : {0, 1, 77, 320, 20'001})
    for (float decay : {0.0f, 0.1f})
      for (float scale : {1.0f, 0.037f})  // the second as clipping gives it
        check_steps(count, {}, decay, scale, 2);
  check_steps(500, {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, 0.01f, 1.0f, 1);
}

TEST(AdamW, TensorsMayStartAnywhere) {
  const OffBorders scope;
  for (int64_t count : {1, 77, 400}) check_steps(count, {}, 0.1f, 0.5f, 2);
}

TEST(AdamW, ReadsGradientsInBf16) {
  for (const int64_t count : {0, 1, 77, 20'001}) {
    TestStream test(2);
    const CaseTensor rounded = random_tensor("adamw.g", {count}, DType::bf16),
                     start = random_tensor("adamw.w", {count}, DType::f32);
    CaseTensor widened = rounded;
    widened.dtype = DType::f32;
    std::vector<Owned> updated;
    for (const CaseTensor& gradient : {rounded, widened}) {
      const Owned g = to_operand(gradient), m = make_output(DType::f32, {count}), v = make_output(DType::f32, {count});
      for (const Owned* moment : {&m, &v}) std::fill_n(moment->view.as<float>(), count, 0.0f);
      updated.push_back(to_operand(start));
      update_by_adamw(test.stream, {}, 1, 1e-2f, 0.1f, 0.5f, g.view, updated.back().view, m.view, v.view);
      wait_for_device();
    }
    EXPECT_EQ(updated[0].memory, updated[1].memory);
  }
}

TEST(AdamW, KeepsACopyInBf16) {
  for (const int64_t count : {0, 1, 77, 20'001}) {
    TestStream test(2);
    const Owned g = to_operand(random_tensor("adamw.g", {count}, DType::f32)), m = make_output(DType::f32, {count}),
                v = make_output(DType::f32, {count}), copy = make_output(DType::bf16, {count});
    const CaseTensor start = random_tensor("adamw.w", {count}, DType::f32);
    const Owned w = to_operand(start), alone = to_operand(start);
    for (const bool copies : {true, false}) {
      for (const Owned* moment : {&m, &v}) std::fill_n(moment->view.as<float>(), count, 0.0f);
      update_by_adamw(test.stream, {}, 1, 1e-2f, 0.1f, 1.0f, g.view, copies ? w.view : alone.view, m.view, v.view,
                      copies ? copy.view : TensorView());
      wait_for_device();
    }
    EXPECT_EQ(w.memory, alone.memory);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(to_float(copy.view.as<bf16>()[i]), to_float(to_bf16(w.view.as<float>()[i]))) << i;
  }
}

// 1 - beta is exact to fp32, not the complement of a rounded beta.
TEST(AdamW, KeepsTheDigitsOfBeta) {
  TestStream test;
  const Owned w = make_output(DType::f32, {1}), g = make_output(DType::f32, {1}), m = make_output(DType::f32, {1}),
              v = make_output(DType::f32, {1});
  for (const Owned* x : {&w, &m, &v}) *x->view.as<float>() = 0.0f;
  *g.view.as<float>() = 1.0f;
  update_by_adamw(test.stream, {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, 1, 1e-3f, 0.0f, 1.0f, g.view, w.view,
                  m.view, v.view);
  wait_for_device();
  EXPECT_EQ(*m.view.as<float>(), static_cast<float>(1 - 0.9));
  EXPECT_EQ(*v.view.as<float>(), static_cast<float>(1 - 0.999));
}

TEST(AdamW, SameBitsOnAnyThreadCount) {
  const int64_t count = 30'011;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<DeviceVector<std::byte>>> results;
    for (int threads = 1; threads <= 3; ++threads) {
      TestStream test(threads);
      const Owned w = to_operand(random_tensor("adamw.w", {count}, DType::f32));
      const Owned g = to_operand(random_tensor("adamw.g", {count}, DType::f32));
      const Owned m = to_operand(random_tensor("adamw.m", {count}, dtype));
      CaseTensor squares = random_tensor("adamw.v", {count}, dtype);
      for (float& x : squares.values) x *= x;
      const Owned v = to_operand(squares);
      update_by_adamw(test.stream, {}, 3, 1e-3f, 0.1f, 0.5f, g.view, w.view, m.view, v.view);
      wait_for_device();
      results.push_back({w.memory, m.memory, v.memory});
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

// Each step from the moments as they were rounded: weights as with fp32 moments of those values (on a GPU but for what
// a compiler contracts in one kernel and not in the other), and moments to one of the two neighbours in bf16.
TEST(AdamW, MomentsInBf16) {
  for (const int64_t count : {0, 1, 77, 20'001}) {
    TestStream test(2);
    const Owned w = to_operand(random_tensor("adamw.w", {count}, DType::f32)), m = make_output(DType::bf16, {count}),
                v = make_output(DType::bf16, {count}), copy = make_output(DType::bf16, {count});
    for (const Owned* moment : {&m, &v}) std::fill_n(moment->view.as<bf16>(), count, bf16{0});
    for (int64_t step = 1; step <= 5; ++step) {
      const Owned g = to_operand(random_tensor("adamw.g" + std::to_string(step), {count}, DType::bf16));
      const auto widened = [&](const Owned& moment) {
        CaseTensor wide = to_case_tensor(moment);
        wide.dtype = DType::f32;
        return to_operand(wide);
      };
      const Owned wide_w = to_operand(to_case_tensor(w)), wide_m = widened(m), wide_v = widened(v);
      update_by_adamw(test.stream, {}, step, 1e-2f, 0.1f, 0.5f, g.view, w.view, m.view, v.view, copy.view);
      update_by_adamw(test.stream, {}, step, 1e-2f, 0.1f, 0.5f, g.view, wide_w.view, wide_m.view, wide_v.view);
      wait_for_device();
      const std::vector<float> expected = to_case_tensor(wide_w).values;
      if (device_kind() == DeviceKind::cpu) {
        EXPECT_EQ(w.memory, wide_w.memory) << "step " << step;
      }
      EXPECT_LT(largest_error(to_case_tensor(w).values, {expected.begin(), expected.end()}), 1e-6) << "step " << step;
      for (const auto& [rounded, exact] : {std::pair(&m, &wide_m), {&v, &wide_v}})
        for (int64_t i = 0; i < count; ++i) {
          const float value = exact->view.as<float>()[i];
          const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // toward zero
          const uint16_t found = rounded->view.as<bf16>()[i].bits;
          ASSERT_TRUE(found == below || (found == below + 1 && to_float(bf16{below}) != value)) << value;
        }
    }
  }
}

// A second moment that a step changes by far less than bf16 can tell still sinks as fast as it should, on average.
TEST(AdamW, SmallChangesOfMomentsInBf16AreNotLost) {
  constexpr int64_t kCount = 4096, kSteps = 400;
  constexpr double kBeta = 0.999;
  TestStream test(2);
  const CaseTensor start = random_tensor("adamw.start", {kCount}, DType::bf16);
  const Owned w = to_operand(random_tensor("adamw.w", {kCount}, DType::f32)), g = make_output(DType::f32, {kCount}),
              m = to_operand(start), v = make_output(DType::bf16, {kCount});
  std::fill_n(g.view.as<float>(), kCount, 0.0f);
  double before = 0, after = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    v.view.as<bf16>()[i] = to_bf16(1.0f + std::abs(start.values[static_cast<size_t>(i)]));
    before += static_cast<double>(to_float(v.view.as<bf16>()[i]));
  }
  for (int64_t step = 1; step <= kSteps; ++step)
    update_by_adamw(test.stream, {.beta1 = 0.9, .beta2 = kBeta, .eps = 1e-8}, step, 0.0f, 0.0f, 1.0f, g.view, w.view,
                    m.view, v.view);
  wait_for_device();
  for (int64_t i = 0; i < kCount; ++i) after += static_cast<double>(to_float(v.view.as<bf16>()[i]));
  EXPECT_NEAR(after / before, std::pow(kBeta, kSteps), 2e-3);
}

TEST(AdamW, MomentsInBf16KeepInfinitiesAndNaNs) {
  TestStream test;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Owned w = make_output(DType::f32, {3}), g = make_output(DType::f32, {3}), m = make_output(DType::bf16, {3}),
              v = make_output(DType::bf16, {3});
  for (int64_t i = 0; i < 3; ++i) {
    w.view.as<float>()[i] = 0;
    m.view.as<bf16>()[i] = v.view.as<bf16>()[i] = bf16{0};
    g.view.as<float>()[i] = i == 0 ? inf : i == 1 ? -inf : nan;
  }
  update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, g.view, w.view, m.view, v.view);
  wait_for_device();
  EXPECT_EQ(to_float(m.view.as<bf16>()[0]), inf);
  EXPECT_EQ(to_float(m.view.as<bf16>()[1]), -inf);
  EXPECT_EQ(to_float(v.view.as<bf16>()[1]), inf);
  EXPECT_TRUE(std::isnan(to_float(m.view.as<bf16>()[2])) && std::isnan(to_float(v.view.as<bf16>()[2])));
}

// Weights in halves take the same steps as in one piece, to the bit.
TEST(AdamW, SplitWeights) {
  for (const DType moments : {DType::f32, DType::bf16})
    for (const int64_t count : {0, 1, 77, 20'001}) {
      TestStream test(2);
      const CaseTensor start = random_tensor("adamw.w", {count}, DType::f32);
      const Owned whole = to_operand(start), rest = make_output(DType::u16, {count}),
                  near = make_output(DType::bf16, {count}), m = make_output(moments, {count}),
                  v = make_output(moments, {count}), split_m = make_output(moments, {count}),
                  split_v = make_output(moments, {count});
      for (const Owned* moment : {&m, &v, &split_m, &split_v})
        std::fill_n(static_cast<std::byte*>(moment->view.data), moment->view.bytes(), std::byte{});
      for (int64_t i = 0; i < count; ++i) {
        const SplitFloat parts = split_float(start.values[static_cast<size_t>(i)]);
        near.view.as<bf16>()[i] = parts.near;
        rest.view.as<uint16_t>()[i] = parts.rest;
      }
      for (int64_t step = 1; step <= 5; ++step) {
        const Owned g = to_operand(random_tensor("adamw.g" + std::to_string(step), {count}, DType::bf16));
        update_by_adamw(test.stream, {}, step, 1e-2f, 0.1f, 0.5f, g.view, whole.view, m.view, v.view);
        update_by_adamw(test.stream, {}, step, 1e-2f, 0.1f, 0.5f, g.view, rest.view, split_m.view, split_v.view,
                        near.view);
        wait_for_device();
        EXPECT_EQ(m.memory, split_m.memory) << "step " << step;
        EXPECT_EQ(v.memory, split_v.memory) << "step " << step;
        for (int64_t i = 0; i < count; ++i) {
          const float w = whole.view.as<float>()[i];
          ASSERT_EQ(join_float(near.view.as<bf16>()[i], rest.view.as<uint16_t>()[i]), w) << "step " << step;
          ASSERT_EQ(near.view.as<bf16>()[i].bits, split_float(w).near.bits) << "step " << step;
        }
      }
    }
}

TEST(AdamW, SplitWeightsKeepNaNs) {
  TestStream test;
  const Owned rest = make_output(DType::u16, {1}), near = make_output(DType::bf16, {1}),
              g = make_output(DType::f32, {1}), m = make_output(DType::f32, {1}), v = make_output(DType::f32, {1});
  *rest.view.as<uint16_t>() = 0;
  *near.view.as<bf16>() = bf16{0};
  *m.view.as<float>() = *v.view.as<float>() = 0.0f;
  *g.view.as<float>() = std::numeric_limits<float>::quiet_NaN();
  update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, g.view, rest.view, m.view, v.view, near.view);
  wait_for_device();
  EXPECT_TRUE(std::isnan(to_float(*near.view.as<bf16>())));
}

// More than a list of a GPU holds, of all types, some beyond what it takes for small, some empty, some off borders.
TEST(AdamW, ManyTensorsAtOnceAreUpdatedAsAlone) {
  TestStream test;
  std::vector<Owned> owned;
  std::vector<AdamWTensor> together, alone;
  const auto make = [&](const std::string& name, int64_t count, DType dtype) {
    CaseTensor values = random_tensor(name, {count}, dtype);
    for (float& value : values.values) value = std::abs(value);  // as second moments are
    owned.push_back(to_operand(values));
    return owned.back().view;
  };
  for (int i = 0; i < 150; ++i) {
    const int64_t count = i == 69 || i == 70 ? 1'100'003 : i % 7 == 3 ? 0 : 1000 + 37 * i;
    const DType gradients = i % 2 == 0 ? DType::f32 : DType::bf16, moments = i / 2 % 2 == 0 ? DType::f32 : DType::bf16;
    const std::string at = std::to_string(i);
    for (std::vector<AdamWTensor>* list : {&together, &alone}) {
      AdamWTensor tensor{1e-3f * static_cast<float>(i + 1),      i % 5 == 0 ? 0.0f : 0.1f,
                         make("adamw.g" + at, count, gradients), make("adamw.w" + at, count, DType::f32),
                         make("adamw.m" + at, count, moments),   make("adamw.v" + at, count, moments)};
      if (i % 6 == 3) {  // the rests of split weights
        owned.push_back(make_output(DType::u16, {count}));
        tensor.w = owned.back().view;
        for (int64_t e = 0; e < count; ++e) tensor.w.as<uint16_t>()[e] = static_cast<uint16_t>(7919 * e);
      }
      if (i % 3 == 0) tensor.copy_bf16 = make("adamw.c" + at, count, DType::bf16);
      if (i % 4 == 0 && count > 0)
        for (TensorView* view : {&tensor.grad, &tensor.w, &tensor.m, &tensor.v}) *view = view->slice(1, count - 1);
      if (i % 4 == 0 && count > 0 && tensor.copy_bf16.data != nullptr)
        tensor.copy_bf16 = tensor.copy_bf16.slice(1, count - 1);
      list->push_back(tensor);
    }
  }
  adamw(test.stream, {}, 3, 0.5f, together);
  for (const AdamWTensor& tensor : alone) adamw(test.stream, {}, 3, 0.5f, {&tensor, 1});
  wait_for_device();
  for (size_t i = 0; i < alone.size(); ++i) {
    const auto same = [](const TensorView& a, const TensorView& b) {
      if (a.data == nullptr || a.bytes() == 0) return (a.data == nullptr) == (b.data == nullptr);
      return std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
    };
    EXPECT_TRUE(same(together[i].w, alone[i].w)) << i;
    EXPECT_TRUE(same(together[i].m, alone[i].m)) << i;
    EXPECT_TRUE(same(together[i].v, alone[i].v)) << i;
    EXPECT_TRUE(same(together[i].copy_bf16, alone[i].copy_bf16)) << i;
  }
}

// Squares below 2^-126, which hardware may flush, still scale the update.
TEST(AdamW, TinyGradientsMoveWeightsByTheLearningRate) {
  TestStream test;
  const std::vector<float> gradients = {3e-20f, -3e-20f, 2e-19f, -1e-19f};
  const auto make = [](float value) { return to_operand(CaseTensor{{4}, std::vector<float>(4, value)}); };
  const Owned g = to_operand(CaseTensor{{4}, gradients}), w = make(1.0f), m = make(0.0f), v = make(0.0f);
  update_by_adamw(test.stream, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-30}, 1, 0.1f, 0.0f, 1.0f, g.view, w.view, m.view,
                  v.view);
  const std::vector<float> weights = to_case_tensor(w).values;
  for (size_t i = 0; i < gradients.size(); ++i) EXPECT_NEAR(weights[i], gradients[i] > 0 ? 0.9 : 1.1, 1e-4) << i;
}

TEST(AdamW, MismatchesAreRefused) {
  TestStream test;
  const Owned a = make_output(DType::f32, {4}), b = make_output(DType::f32, {5});
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, b.view, a.view, a.view, a.view), Error);
  EXPECT_THROW(update_by_adamw(test.stream, {}, 0, 1e-3f, 0.0f, 1.0f, a.view, a.view, a.view, a.view), Error);
  const Owned longer = make_output(DType::bf16, {5});
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, a.view, a.view, a.view, a.view, longer.view),
               Error);
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, a.view, a.view, a.view, a.view, a.view), Error);
  const Owned half = make_output(DType::bf16, {4});
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, a.view, a.view, half.view, a.view), Error);
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, a.view, half.view, a.view, a.view), Error);
  const Owned rest = make_output(DType::u16, {4});  // without what it is the rest of
  EXPECT_THROW(update_by_adamw(test.stream, {}, 1, 1e-3f, 0.0f, 1.0f, a.view, rest.view, a.view, a.view), Error);
}

}  // namespace
}  // namespace mw::test
