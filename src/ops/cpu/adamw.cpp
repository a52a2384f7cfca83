#include "ops/adamw.h"

#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/cpu/master_weights.h"

namespace mw::cpu {

void adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale, TensorView grad,
           TensorView w, TensorView m, TensorView v, TensorView copy_bf16) {
  const int64_t count = w.numel();
  bf16* copy = copy_bf16.data == nullptr ? nullptr : copy_bf16.as<bf16>();

  // Scalars in double, as torch has them: 1 - beta2 would lose digits in fp32.
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step);
  const auto keep1 = static_cast<float>(beta1), take1 = static_cast<float>(1.0 - beta1);
  const auto keep2 = static_cast<float>(beta2), take2 = static_cast<float>(1.0 - beta2);
  const auto shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
  const auto rate = static_cast<float>(static_cast<double>(lr) / (1.0 - std::pow(beta1, steps)));
  const auto inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps)));
  const auto eps = static_cast<float>(rule.eps);

  constexpr int64_t kBlock = 8192;
  const auto seed = static_cast<uint32_t>(2 * step);
  const auto update = [&]<class G, class M, class W>(G, M, const W weights) {
    const G* gradient = grad.as<G>();
    M* first = m.as<M>();
    M* second = v.as<M>();
    for_blocks(stream, count, kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float g = to_float(gradient[i]) * grad_scale;
        const float m_now = keep1 * to_float(first[i]) + take1 * g;
        const float v_now = keep2 * to_float(second[i]) + take2 * (g * g);
        const float weight = weights.at(i);
        store_moment(first[i], m_now, weight, seed);
        store_moment(second[i], v_now, weight, seed + 1);
        weights.set(i, weight * shrink - rate * (m_now / (std::sqrt(v_now) * inverse_root + eps)));
      }
      weights.finish(begin, end);
    });
  };
  with_float_type(grad.dtype, [&](auto g) {
    with_float_type(m.dtype, [&](auto moment) {
      if (w.dtype == DType::f32) update(g, moment, WholeWeights{w.as<float>(), copy});
      else update(g, moment, SplitWeights{copy, w.as<uint16_t>()});
    });
  });
}

}  // namespace mw::cpu
