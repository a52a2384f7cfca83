#include "ops/adamw.h"

#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/cpu/master_weights.h"

namespace mw::cpu {
namespace {

void update_tensor(Stream& stream, const AdamW& rule, int64_t step, float grad_scale, const AdamWTensor& tensor) {
  const int64_t count = tensor.w.numel();
  bf16* copy = tensor.copy_bf16.data == nullptr ? nullptr : tensor.copy_bf16.as<bf16>();

  // Scalars in double, as torch has them: 1 - beta2 would lose digits in fp32.
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step), lr = tensor.lr;
  const auto keep1 = static_cast<float>(beta1), take1 = static_cast<float>(1.0 - beta1);
  const auto keep2 = static_cast<float>(beta2), take2 = static_cast<float>(1.0 - beta2);
  const auto shrink = static_cast<float>(1.0 - lr * static_cast<double>(tensor.decay));
  const auto rate = static_cast<float>(lr / (1.0 - std::pow(beta1, steps)));
  const auto inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps)));
  const auto eps = static_cast<float>(rule.eps);

  constexpr int64_t kBlock = 8192;
  const auto seed = static_cast<uint32_t>(step);
  const auto update = [&]<class G, class M, class W>(G, M, const W weights) {
    const G* gradient = tensor.grad.as<G>();
    M* first = tensor.m.as<M>();
    M* second = tensor.v.as<M>();
    for_blocks(stream, count, kBlock, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float g = to_float(gradient[i]) * grad_scale;
        const float m_now = keep1 * to_float(first[i]) + take1 * g;
        const float v_now = keep2 * to_float(second[i]) + take2 * (g * g);
        const float weight = weights.at(i);
        const uint32_t chance = chance_of(m_now, weight, seed);
        store_moment(first[i], m_now, chance);
        store_moment(second[i], v_now, chance >> 16);
        weights.set(i, weight * shrink - rate * (m_now / (std::sqrt(v_now) * inverse_root + eps)));
      }
      weights.finish(begin, end);
    });
  };
  with_float_type(tensor.grad.dtype, [&](auto g) {
    with_float_type(tensor.m.dtype, [&](auto moment) {
      if (tensor.w.dtype == DType::f32) update(g, moment, WholeWeights{tensor.w.as<float>(), copy});
      else update(g, moment, SplitWeights{copy, tensor.w.as<uint16_t>()});
    });
  });
}

}  // namespace

void adamw(Stream& stream, const AdamW& rule, int64_t step, float grad_scale, std::span<const AdamWTensor> tensors) {
  for (const AdamWTensor& tensor : tensors) update_tensor(stream, rule, step, grad_scale, tensor);
}

}  // namespace mw::cpu
