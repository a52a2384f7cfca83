// AdamW: each thread updates 16 bytes of all four tensors, or one element where an address does not allow that.
#include "ops/adamw.h"

#include <cmath>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"

namespace mw::gpu {
namespace {

template <class Gradient>
struct Update {
  float keep1, take1, keep2, take2;  // beta and 1 - beta
  float shrink, rate, inverse_root, eps, grad_scale;
  const Gradient* gradient;
  float *weight, *first, *second;
  bf16* copy;  // null: none is wanted
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<Gradient, N> gradients = load<N>(gradient + i);
    Pack<float, N> w = load<N>(weight + i), m = load<N>(first + i), v = load<N>(second + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = to_float(gradients.at[k]) * grad_scale;
      m.at[k] = keep1 * m.at[k] + take1 * g;
      v.at[k] = keep2 * v.at[k] + take2 * (g * g);
      w.at[k] = w.at[k] * shrink - rate * (m.at[k] / (sqrtf(v.at[k]) * inverse_root + eps));
    }
    store(first + i, m);
    store(second + i, v);
    store(weight + i, w);
    if (copy == nullptr) return;
    store(copy + i, round_pack<bf16>(w));
  }
};

}  // namespace

void adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale, TensorView grad,
           TensorView w, TensorView m, TensorView v, TensorView copy_bf16) {
  const int64_t count = w.numel();
  // Scalars in double, as torch has them: 1 - beta2 would lose digits in fp32.
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step);
  with_float_type(grad.dtype, [&](auto type) {
    using Gradient = decltype(type);
    Update<Gradient> update;
    update.keep1 = static_cast<float>(beta1);
    update.take1 = static_cast<float>(1.0 - beta1);
    update.keep2 = static_cast<float>(beta2);
    update.take2 = static_cast<float>(1.0 - beta2);
    update.shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
    update.rate = static_cast<float>(static_cast<double>(lr) / (1.0 - std::pow(beta1, steps)));
    update.inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps)));
    update.eps = rule.eps;
    update.grad_scale = grad_scale;
    update.gradient = grad.as<Gradient>();
    update.weight = w.as<float>();
    update.first = m.as<float>();
    update.second = v.as<float>();
    update.copy = copy_bf16.data == nullptr ? nullptr : copy_bf16.as<bf16>();
    constexpr int kPack = kWidePack<float>;
    const bool allowed = allow_packs<kPack>(update.gradient, update.weight, update.first, update.second) &&
                         allow_packs<kPack>(update.copy);
    for_each_pack<kPack>(stream, count, allowed, update);
  });
}

}  // namespace mw::gpu
