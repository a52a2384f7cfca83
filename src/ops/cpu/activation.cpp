#include "ops/activation.h"

#include <type_traits>

#include "ops/cpu/loops.h"
#include "ops/cpu/simd_math.h"

namespace mw::cpu {
namespace {

// The value of an activation of one variable and its derivative.
struct Point {
  float value, slope;
};

struct Silu {
  static float value(float x) { return x * fast_sigmoid(x); }
  static Point point(float x) {
    const float s = fast_sigmoid(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which has no cancellation.
struct Gelu {
  static constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  static float value(float x) { return x * fast_sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x)); }
  static Point point(float x) {
    const float s = fast_sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x));
    const float inner = kTwiceRoot * (1.0f + 3.0f * kCubic * x * x);
    return {x * s, s * (1.0f + x * (1.0f - s) * inner)};
  }
};

struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }  // a NaN passes
  static Point point(float x) { return {value(x), x > 0.0f ? 1.0f : 0.0f}; }
};

// Rows of one operand as typed pointers. Outputs may alias inputs element by element, which `omp simd` allows.
template <class T, class F, bool kGated>
void activate_row(const T* gate, const T* up, T* a, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float value = F::value(to_float(gate[i]));
    if constexpr (kGated) a[i] = from_float<T>(value * to_float(up[i]));
    else a[i] = from_float<T>(value);
  }
}

// Returns <d_a, activation(h)>.
template <class T, class F, bool kGated>
float activate_row_backward(const T* gate, const T* up, const T* d_a, float weight, T* d_gate, T* d_up, T* a,
                            int64_t width) {
  float product = 0.0f;
#pragma omp simd reduction(+ : product)
  for (int64_t i = 0; i < width; ++i) {
    const Point point = F::point(to_float(gate[i]));
    const float d = to_float(d_a[i]);
    const float weighted = weight * d;
    if constexpr (kGated) {
      const float factor = to_float(up[i]);
      const float value = point.value * factor;
      product += d * value;
      d_gate[i] = from_float<T>(weighted * factor * point.slope);
      d_up[i] = from_float<T>(weighted * point.value);
      a[i] = from_float<T>(weight * value);
    } else {
      product += d * point.value;
      d_gate[i] = from_float<T>(weighted * point.slope);
      a[i] = from_float<T>(weight * point.value);
    }
  }
  return product;
}

// Calls body with the function and whether h has an up half.
template <class Body>
void with_activation(Activation kind, Body&& body) {
  switch (kind) {
    case Activation::swiglu: return body(Silu{}, std::true_type{});
    case Activation::gelu: return body(Gelu{}, std::false_type{});
    case Activation::relu: return body(Relu{}, std::false_type{});
  }
}

}  // namespace

void activate(Stream& stream, Activation kind, TensorView h_RcF, TensorView a_RF) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1), stride = halves_of(kind) * F;
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    const T* h = h_RcF.as<T>();
    T* a = a_RF.as<T>();
    with_activation(kind, [&](auto function, auto gated) {
      for_blocks(stream, R, rows_per_block(F), [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          activate_row<T, decltype(function), decltype(gated)::value>(h + r * stride, h + r * stride + F, a + r * F, F);
      });
    });
  });
}

void activate_backward(Stream& stream, Activation kind, TensorView h_RcF, TensorView d_a_RF, TensorView weight_R,
                       TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1), stride = halves_of(kind) * F;
  const float* weights = weight_R.data == nullptr ? nullptr : weight_R.as<float>();
  float* d_weights = d_weight_R.data == nullptr ? nullptr : d_weight_R.as<float>();
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    const T* h = h_RcF.as<T>();
    const T* d_a = d_a_RF.as<T>();
    T* d_h = d_h_RcF.as<T>();
    T* a = a_RF.as<T>();
    with_activation(kind, [&](auto function, auto gated) {
      for_blocks(stream, R, rows_per_block(F), [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t gate = r * stride, up = gate + F;
          const float product = activate_row_backward<T, decltype(function), decltype(gated)::value>(
              h + gate, h + up, d_a + r * F, weights == nullptr ? 1.0f : weights[r], d_h + gate, d_h + up, a + r * F,
              F);
          if (d_weights != nullptr) d_weights[r] = product;
        }
      });
    });
  });
}

}  // namespace mw::cpu
