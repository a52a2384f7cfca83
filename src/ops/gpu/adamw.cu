// AdamW: each thread updates four elements of all tensors, or one element where an address does not allow that.
#include "ops/adamw.h"

#include <cmath>
#include <type_traits>

#include "ops/gpu/launch.h"
#include "ops/gpu/master_weights.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

template <class Gradient, class Moment, class Weight>
struct Update {
  float keep1, take1, keep2, take2;  // beta and 1 - beta
  float shrink, rate, inverse_root, eps, grad_scale;
  uint32_t seed;  // of rounding
  const Gradient* gradient;
  Weight* weight;  // float, or uint16_t: the rests beside `copy`
  Moment *first, *second;
  bf16* copy;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<Gradient, N> gradients = load<N>(gradient + i);
    const Pack<Moment, N> m_then = load<N>(first + i), v_then = load<N>(second + i);
    const Pack<float, N> w_then = load_weights<N>(weight, copy, i);
    Pack<float, N> w, m, v;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = to_float(gradients.at[k]) * grad_scale;
      m.at[k] = keep1 * to_float(m_then.at[k]) + take1 * g;
      v.at[k] = keep2 * to_float(v_then.at[k]) + take2 * (g * g);
      w.at[k] = w_then.at[k] * shrink - rate * (m.at[k] / (sqrtf(v.at[k]) * inverse_root + eps));
    }
    store_moments(first + i, m, w_then, seed);
    store_moments(second + i, v, w_then, seed + 1);
    store_weights(weight, copy, i, w);
  }
};

}  // namespace

void adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale, TensorView grad,
           TensorView w, TensorView m, TensorView v, TensorView copy_bf16) {
  const int64_t count = w.numel();
  // Scalars in double, as torch has them: 1 - beta2 would lose digits in fp32.
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step);
  const auto run = [&](auto gradient_type, auto moment_type, auto* weights) {
    using Gradient = decltype(gradient_type);
    using Moment = decltype(moment_type);
    Update<Gradient, Moment, std::remove_pointer_t<decltype(weights)>> update;
    update.keep1 = static_cast<float>(beta1);
    update.take1 = static_cast<float>(1.0 - beta1);
    update.keep2 = static_cast<float>(beta2);
    update.take2 = static_cast<float>(1.0 - beta2);
    update.shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
    update.rate = static_cast<float>(static_cast<double>(lr) / (1.0 - std::pow(beta1, steps)));
    update.inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps)));
    update.eps = rule.eps;
    update.grad_scale = grad_scale;
    update.seed = static_cast<uint32_t>(2 * step);
    update.gradient = grad.as<Gradient>();
    update.weight = weights;
    update.first = m.as<Moment>();
    update.second = v.as<Moment>();
    update.copy = copy_bf16.data == nullptr ? nullptr : copy_bf16.as<bf16>();
    constexpr int kPack = kWidePack<float>;
    const bool allowed = allow_packs<kPack>(update.gradient, update.weight, update.first, update.second) &&
                         allow_packs<kPack>(update.copy);
    for_each_pack<kPack>(stream, count, allowed, update);
  };
  with_float_type(grad.dtype, [&](auto gradient) {
    with_float_type(m.dtype, [&](auto moment) {
      if (w.dtype == DType::f32) run(gradient, moment, w.as<float>());
      else run(gradient, moment, w.as<uint16_t>());
    });
  });
}

}  // namespace mw::gpu
