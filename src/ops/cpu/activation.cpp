#include "ops/activation_functions.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

using activation_detail::Point;
using activation_detail::with_activation;

struct Sigmoid {
  static float of(float x) { return fast_sigmoid(x); }
};

// Rows of one operand as typed pointers. Outputs may alias inputs element by element, which `omp simd` allows.
template <class T, class F>
void activate_row(const F& function, const T* gate, const T* up, T* a, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float value = function.value(to_float(gate[i]));
    if constexpr (F::kGated) a[i] = from_float<T>(value * function.factor(to_float(up[i])).value);
    else a[i] = from_float<T>(value);
  }
}

// Returns <d_a, activation(h)>.
template <class T, class F>
float activate_row_backward(const F& function, const T* gate, const T* up, const T* d_a, float weight, T* d_gate,
                            T* d_up, T* a, int64_t width) {
  float product = 0.0f;
#pragma omp simd reduction(+ : product)
  for (int64_t i = 0; i < width; ++i) {
    const Point point = function.point(to_float(gate[i]));
    const float d = to_float(d_a[i]);
    const float weighted = weight * d;
    if constexpr (F::kGated) {
      const Point factor = function.factor(to_float(up[i]));
      const float value = point.value * factor.value;
      product += d * value;
      d_gate[i] = from_float<T>(weighted * factor.value * point.slope);
      d_up[i] = from_float<T>(weighted * point.value * factor.slope);
      a[i] = from_float<T>(weight * value);
    } else {
      product += d * point.value;
      d_gate[i] = from_float<T>(weighted * point.slope);
      a[i] = from_float<T>(weight * point.value);
    }
  }
  return product;
}

}  // namespace

void activate(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView a_RF) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1), stride = halves_of(rule.kind) * F;
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    const T* h = h_RcF.as<T>();
    T* a = a_RF.as<T>();
    with_activation<Sigmoid>(rule, [&](auto function) {
      for_blocks(stream, R, rows_per_block(F), [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) activate_row(function, h + r * stride, h + r * stride + F, a + r * F, F);
      });
    });
  });
}

void activate_backward(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView d_a_RF,
                       TensorView weight_R, TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1), stride = halves_of(rule.kind) * F;
  const float* weights = weight_R.data == nullptr ? nullptr : weight_R.as<float>();
  float* d_weights = d_weight_R.data == nullptr ? nullptr : d_weight_R.as<float>();
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    const T* h = h_RcF.as<T>();
    const T* d_a = d_a_RF.as<T>();
    T* d_h = d_h_RcF.as<T>();
    T* a = a_RF.as<T>();
    with_activation<Sigmoid>(rule, [&](auto function) {
      for_blocks(stream, R, rows_per_block(F), [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t gate = r * stride, up = gate + F;
          const float product =
              activate_row_backward(function, h + gate, h + up, d_a + r * F, weights == nullptr ? 1.0f : weights[r],
                                    d_h + gate, d_h + up, a + r * F, F);
          if (d_weights != nullptr) d_weights[r] = product;
        }
      });
    });
  });
}

}  // namespace mw::cpu
