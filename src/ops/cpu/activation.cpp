#include "ops/activation.h"

#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

// The value of an activation of one variable and its derivative.
struct Point {
  float value, slope;
};

// A gated activation is a value of the gate times a factor, which is a function of up.
struct Silu {
  static constexpr bool kGated = true;
  float value(float x) const { return x * fast_sigmoid(x); }
  Point factor(float up) const { return {up, 1.0f}; }
  Point point(float x) const {
    const float s = fast_sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

// A NaN passes the clamps.
struct ClampedSwiglu {
  static constexpr bool kGated = true;
  float alpha, limit;
  float value(float x) const { return point(x).value; }
  Point point(float x) const {
    const float g = x > limit ? limit : x, s = fast_sigmoid(alpha * g);
    return {g * s, x > limit ? 0.0f : s * (1.0f + alpha * g * (1.0f - s))};
  }
  Point factor(float up) const {
    const float below = up > limit ? limit : up, u = below < -limit ? -limit : below;
    return {u + 1.0f, u == up ? 1.0f : 0.0f};
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which has no cancellation.
struct Gelu {
  static constexpr bool kGated = false;
  static constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  float value(float x) const { return x * fast_sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x)); }
  Point point(float x) const {
    const float s = fast_sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x));
    const float inner = kTwiceRoot * (1.0f + 3.0f * kCubic * x * x);
    return {x * s, s * (1.0f + x * (1.0f - s) * inner)};
  }
};

struct Relu {
  static constexpr bool kGated = false;
  float value(float x) const { return x < 0.0f ? 0.0f : x; }  // a NaN passes
  Point point(float x) const { return {value(x), x > 0.0f ? 1.0f : 0.0f}; }
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

// Calls body with the function.
template <class Body>
void with_activation(const ActivationRule& rule, Body&& body) {
  switch (rule.kind) {
    case Activation::swiglu: return body(Silu{});
    case Activation::clamped_swiglu: return body(ClampedSwiglu{rule.alpha, rule.limit});
    case Activation::gelu: return body(Gelu{});
    case Activation::relu: return body(Relu{});
  }
}

}  // namespace

void activate(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView a_RF) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1), stride = halves_of(rule.kind) * F;
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    const T* h = h_RcF.as<T>();
    T* a = a_RF.as<T>();
    with_activation(rule, [&](auto function) {
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
    with_activation(rule, [&](auto function) {
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
