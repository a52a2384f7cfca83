// Activations of one element and their slopes, for every backend: Sigmoid::of is its own 1 / (1 + e^-x).
#pragma once

#include "ops/activation.h"

namespace mw::activation_detail {

// The value of an activation of one variable and its derivative.
struct Point {
  float value, slope;
};

// With a gate, h has an up half, too: the activation is a value of the gate times a factor, which is a function of up.
template <class Sigmoid>
struct Silu {
  static constexpr bool kGated = true;
  constexpr float value(float x) const { return x * Sigmoid::of(x); }
  constexpr Point factor(float up) const { return {up, 1.0f}; }
  constexpr Point point(float x) const {
    const float s = Sigmoid::of(x);
    return {x * s, s * (1.0f + x * (1.0f - s))};
  }
};

// A NaN passes the clamps.
template <class Sigmoid>
struct ClampedSwiglu {
  static constexpr bool kGated = true;
  float alpha, limit;
  constexpr float value(float x) const { return point(x).value; }
  constexpr Point point(float x) const {
    const float g = x > limit ? limit : x, s = Sigmoid::of(alpha * g);
    return {g * s, x > limit ? 0.0f : s * (1.0f + alpha * g * (1.0f - s))};
  }
  constexpr Point factor(float up) const {
    const float below = up > limit ? limit : up, u = below < -limit ? -limit : below;
    return {u + 1.0f, u == up ? 1.0f : 0.0f};
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which has no cancellation.
template <class Sigmoid>
struct Gelu {
  static constexpr bool kGated = false;
  static constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  constexpr float value(float x) const { return x * Sigmoid::of(kTwiceRoot * x * (1.0f + kCubic * x * x)); }
  constexpr Point point(float x) const {
    const float s = Sigmoid::of(kTwiceRoot * x * (1.0f + kCubic * x * x));
    const float inner = kTwiceRoot * (1.0f + 3.0f * kCubic * x * x);
    return {x * s, s * (1.0f + x * (1.0f - s) * inner)};
  }
};

struct Relu {
  static constexpr bool kGated = false;
  constexpr float value(float x) const { return x < 0.0f ? 0.0f : x; }  // a NaN passes
  constexpr Point point(float x) const { return {value(x), x > 0.0f ? 1.0f : 0.0f}; }
};

// Calls body with the function.
template <class Sigmoid, class Body>
void with_activation(const ActivationRule& rule, Body&& body) {
  switch (rule.kind) {
    case Activation::swiglu: return body(Silu<Sigmoid>{});
    case Activation::clamped_swiglu: return body(ClampedSwiglu<Sigmoid>{rule.alpha, rule.limit});
    case Activation::gelu: return body(Gelu<Sigmoid>{});
    case Activation::relu: return body(Relu{});
  }
}

}  // namespace mw::activation_detail
