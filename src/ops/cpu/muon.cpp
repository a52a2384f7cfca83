#include "ops/muon.h"

#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/cpu/master_weights.h"

namespace mw::cpu {
namespace {

constexpr int64_t kBlock = 8192;

double sum_squares_of(const float* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

}  // namespace

void muon_momentum(Stream& stream, const Muon& rule, int64_t step, float grad_scale, TensorView grad, TensorView m,
                   TensorView u) {
  const auto keep = static_cast<float>(rule.momentum), take = static_cast<float>(1.0 - rule.momentum);
  const bool nesterov = rule.nesterov;
  const auto seed = static_cast<uint32_t>(step);
  with_float_type(grad.dtype, [&]<class G>(G) {
    with_float_type(m.dtype, [&]<class M>(M) {
      const G* gradient = grad.as<G>();
      M* moment = m.as<M>();
      float* out = u.as<float>();
      for_blocks(stream, u.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          const float g = to_float(gradient[i]) * grad_scale;
          const float now = keep * to_float(moment[i]) + take * g;
          store_moment(moment[i], now, chance_of(now, g, seed));
          out[i] = nesterov ? keep * now + take * g : now;
        }
      });
    });
  });
}

void normalise_matrices(Stream& stream, TensorView x_bNK, TensorView sums, TensorView y_bNK) {
  const int64_t matrices = x_bNK.dim(0), count = x_bNK.dim(1) * x_bNK.dim(2);
  const int64_t part = (count + kNormParts - 1) / kNormParts;
  const float* x = x_bNK.as<float>();
  float* squares = sums.as<float>();
  for_blocks(stream, matrices * kNormParts, 1, [=](int64_t i, int64_t) {
    const int64_t begin = std::min(count, i % kNormParts * part), end = std::min(count, begin + part);
    squares[i] = static_cast<float>(sum_squares_of(x + i / kNormParts * count + begin, end - begin));
  });
  with_float_type(y_bNK.dtype, [&]<class T>(T) {
    T* y = y_bNK.as<T>();
    for_blocks(stream, matrices * kNormParts, 1, [=](int64_t i, int64_t) {
      const int64_t matrix = i / kNormParts, begin = std::min(count, i % kNormParts * part);
      double sum = 0;
      for (int64_t p = 0; p < kNormParts; ++p) sum += static_cast<double>(squares[matrix * kNormParts + p]);
      const auto inverse = static_cast<float>(1.0 / std::max(std::sqrt(sum), kLeastNorm));
      const int64_t first = matrix * count + begin, last = matrix * count + std::min(count, begin + part);
#pragma omp simd
      for (int64_t at = first; at < last; ++at) y[at] = from_float<T>(x[at] * inverse);
    });
  });
}

void muon_update(Stream& stream, float lr, float decay, float rate, TensorView x, TensorView w, TensorView copy_bf16) {
  bf16* copy = copy_bf16.data == nullptr ? nullptr : copy_bf16.as<bf16>();
  const auto shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
  const auto update = [&]<class X, class W>(X, const W weights) {
    const X* values = x.as<X>();
    for_blocks(stream, x.numel(), kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) weights.set(i, weights.at(i) * shrink - rate * to_float(values[i]));
      weights.finish(begin, end);
    });
  };
  with_float_type(x.dtype, [&](auto type) {
    if (w.dtype == DType::f32) update(type, WholeWeights{w.as<float>(), copy});
    else update(type, SplitWeights{copy, w.as<uint16_t>()});
  });
}

}  // namespace mw::cpu
