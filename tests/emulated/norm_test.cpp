// RMS normalisation of GPUs: the very source, run on the CPU, against plain loops.
#include "ops/gpu/norm.cu"  // with the stand-in of launch.h

#include <gtest/gtest.h>

#include <vector>

#include "core/rng.h"
#include "emulated/shifted.h"
#include "emulated/stream.h"

namespace mw::gpu {
namespace {

enum class Alias { none, d_y, d_residual };

struct Case {
  int64_t rows, width;
  int64_t shift = 0;  // of all operands, in elements, from a border of 16 bytes
};

template <class T>
class Operand {
 public:
  Operand(const Case& c, const char* name) : shape_{c.rows, c.width}, memory_(c.rows * c.width, c.shift) {
    const RngKey key = make_rng_key(9, name);
    for (int64_t i = 0; i < c.rows * c.width; ++i)
      memory_.data()[i] = rounded(normal_at(key, static_cast<uint64_t>(i)));
  }
  TensorView view() {
    return {memory_.data(), std::is_same_v<T, float> ? DType::f32 : DType::bf16, {shape_[0], shape_[1]}};
  }
  double at(int64_t r, int64_t i) const { return to_float(memory_.data()[r * shape_[1] + i]); }

 private:
  static T rounded(float value) {
    if constexpr (std::is_same_v<T, float>) return value;
    else return to_bf16(value);
  }
  int64_t shape_[2];
  emulated::Shifted<T> memory_;
};

template <class T>
void check_backward(const Case& c, bool residual, Alias alias = Alias::none) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.width << ", shifted by " << c.shift << ", residual "
                                  << residual << ", alias " << static_cast<int>(alias));
  Operand<T> x(c, "x"), d_y(c, "d_y"), d_residual(c, "d_residual"), apart(c, "d_x"), y(c, "y");
  const Operand<T> d_y_before(c, "d_y"), d_residual_before(c, "d_residual");
  Operand<float> gain({1, c.width, c.shift}, "gain"), d_gain({1, c.width}, "d_gain"), rstd({1, c.rows}, "rstd");
  const Operand<float> d_gain_before({1, c.width}, "d_gain");
  const auto row_of = [](Operand<float>& o) { return o.view().reshape({o.view().cols()}); };
  emulated::EmulatedStream emulated(gpu::norm_workspace_bytes(c.rows, c.width));
  constexpr double kEps = 1e-5;
  gpu::rms_norm(emulated.stream, x.view(), row_of(gain), static_cast<float>(kEps), y.view(), row_of(rstd), {});
  Operand<T>& d_x = alias == Alias::none ? apart : alias == Alias::d_y ? d_y : d_residual;
  gpu::rms_norm_backward(emulated.stream, x.view(), row_of(gain), row_of(rstd), d_y.view(),
                         residual ? d_residual.view() : TensorView(), d_x.view(), row_of(d_gain), {});
  const double error = std::is_same_v<T, float> ? 1e-5 : 1e-2;
  std::vector<double> gains(static_cast<size_t>(c.width));
  for (int64_t r = 0; r < c.rows; ++r) {
    double squares = 0, product = 0;
    for (int64_t i = 0; i < c.width; ++i) squares += x.at(r, i) * x.at(r, i);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(c.width) + kEps);
    for (int64_t i = 0; i < c.width; ++i) product += gain.at(0, i) * d_y_before.at(r, i) * x.at(r, i) * inverse;
    for (int64_t i = 0; i < c.width; ++i) {
      const double normal = x.at(r, i) * inverse, d = d_y_before.at(r, i);
      const double expected = inverse * (gain.at(0, i) * d - normal * product / static_cast<double>(c.width)) +
                              (residual ? d_residual_before.at(r, i) : 0);
      gains[static_cast<size_t>(i)] += d * normal;
      ASSERT_NEAR(y.at(r, i), gain.at(0, i) * normal, error * (1 + std::abs(y.at(r, i)))) << r << ' ' << i;
      ASSERT_NEAR(d_x.at(r, i), expected, error * (1 + std::abs(expected))) << r << ' ' << i;
    }
  }
  for (int64_t i = 0; i < c.width; ++i)
    ASSERT_NEAR(d_gain.at(0, i), d_gain_before.at(0, i) + gains[static_cast<size_t>(i)], 1e-3) << i;
}

// From widths that a part of a wave takes to ones beyond what the threads of a block keep; more rows than blocks.
TEST(NormKernels, GiveWhatLoopsGive) {
  for (const Case& c : {Case{37, 1}, Case{37, 7}, Case{530, 64}, Case{515, 512}, Case{5, 200}, Case{3, 2048},
                        Case{2, 4100}, Case{2, 7168}, Case{9, 128, 1}, Case{2, 4104, 1}}) {
    check_backward<bf16>(c, false);
    check_backward<float>(c, true);
  }
}

TEST(NormKernels, MayWriteOverWhatTheyRead) {
  for (const Case& c : {Case{37, 128}, Case{3, 5120}}) {
    check_backward<bf16>(c, false, Alias::d_y);
    check_backward<bf16>(c, true, Alias::d_residual);
    check_backward<float>(c, true, Alias::d_residual);
  }
}

}  // namespace
}  // namespace mw::gpu
