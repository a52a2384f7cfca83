// AdamW: one thread per element. Four loads per element keep enough bytes in flight without vector loads.
#include "ops/adamw.h"

#include <cmath>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"

namespace mw::gpu {
namespace {

struct Update {
  float keep1, take1, keep2, take2;  // beta and 1 - beta
  float shrink, rate, inverse_root, eps, grad_scale;
  const float* gradient;
  float *weight, *first, *second;
  __device__ void operator()(int64_t i) const {
    const float g = gradient[i] * grad_scale;
    const float m = keep1 * first[i] + take1 * g;
    const float v = keep2 * second[i] + take2 * (g * g);
    const float w = weight[i];
    first[i] = m;
    second[i] = v;
    weight[i] = w * shrink - rate * (m / (sqrtf(v) * inverse_root + eps));
  }
};

}  // namespace

void adamw(Stream& stream, const AdamW& rule, int64_t step, float lr, float decay, float grad_scale, TensorView grad,
           TensorView w, TensorView m, TensorView v) {
  const int64_t count = w.numel();
  // Scalars in double, as torch has them: 1 - beta2 would lose digits in fp32.
  const double beta1 = rule.beta1, beta2 = rule.beta2, steps = static_cast<double>(step);
  Update update;
  update.keep1 = static_cast<float>(beta1);
  update.take1 = static_cast<float>(1.0 - beta1);
  update.keep2 = static_cast<float>(beta2);
  update.take2 = static_cast<float>(1.0 - beta2);
  update.shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
  update.rate = static_cast<float>(static_cast<double>(lr) / (1.0 - std::pow(beta1, steps)));
  update.inverse_root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, steps)));
  update.eps = rule.eps;
  update.grad_scale = grad_scale;
  update.gradient = grad.as<float>();
  update.weight = w.as<float>();
  update.first = m.as<float>();
  update.second = v.as<float>();
  for_each(stream, count, update);
}

}  // namespace mw::gpu
