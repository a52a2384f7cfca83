// Muon's elementwise parts: a thread takes 16 bytes at a time where the addresses allow it.
#include "ops/muon.h"

#include <type_traits>

#include "ops/gpu/launch.h"
#include "ops/gpu/master_weights.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

template <class Gradient, class Moment>
struct Momentum {
  float keep, take, grad_scale;
  bool nesterov;
  uint32_t seed;  // of rounding
  const Gradient* gradient;
  Moment* moment;
  float* out;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<Gradient, N> gradients = load<N>(gradient + i);
    const Pack<Moment, N> then = load<N>(moment + i);
    Pack<float, N> g, now, u;
    Pack<uint32_t, N> chances;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      g.at[k] = to_float(gradients.at[k]) * grad_scale;
      now.at[k] = keep * to_float(then.at[k]) + take * g.at[k];
      chances.at[k] = chance_of(now.at[k], g.at[k], seed);
      u.at[k] = nesterov ? keep * now.at[k] + take * g.at[k] : now.at[k];
    }
    store_moments(moment + i, now, chances);
    store(out + i, u);
  }
};

// Block p of a matrix sums the squares of its p-th part.
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(const float* x, int64_t count, int64_t part, float* sums) {
  const int64_t matrix = blockIdx.x / kNormParts, p = blockIdx.x % kNormParts;
  const float* values = x + matrix * count;
  const int64_t end = p * part + part < count ? p * part + part : count;
  float sum = 0;
  for (int64_t i = p * part + threadIdx.x; i < end; i += kThreads) sum += values[i] * values[i];
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

constexpr int64_t kScaled = 8 * kThreads;  // elements of a block

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const float* x, int64_t count, int64_t blocks, const float* sums, T* y) {
  const int64_t matrix = blockIdx.x / blocks, begin = blockIdx.x % blocks * kScaled;
  const int part = static_cast<int>(threadIdx.x);
  const float squares = reduce_block(part < kNormParts ? sums[matrix * kNormParts + part] : 0.0f, Sum());
  const float norm = sqrtf(squares), least = static_cast<float>(kLeastNorm);
  const float inverse = 1.0f / (norm > least ? norm : least);
  const int64_t end = begin + kScaled < count ? begin + kScaled : count;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    y[matrix * count + i] = from_float<T>(x[matrix * count + i] * inverse);
}

template <class Value, class Weight>
struct Update {
  float shrink, rate;
  const Value* value;
  Weight* weight;  // float, or uint16_t: the rests beside `copy`
  bf16* copy;
  template <int N>
  __device__ void apply(int64_t i) const {
    const Pack<Value, N> x = load<N>(value + i);
    Pack<float, N> w = load_weights<N>(weight, copy, i);
#pragma unroll
    for (int k = 0; k < N; ++k) w.at[k] = w.at[k] * shrink - rate * to_float(x.at[k]);
    store_weights(weight, copy, i, w);
  }
};

}  // namespace

void muon_momentum(Stream& stream, const Muon& rule, int64_t step, float grad_scale, TensorView grad, TensorView m,
                   TensorView u) {
  with_float_type(grad.dtype, [&](auto gradient_type) {
    with_float_type(m.dtype, [&](auto moment_type) {
      using Gradient = decltype(gradient_type);
      using Moment = decltype(moment_type);
      const Momentum<Gradient, Moment> body{static_cast<float>(rule.momentum),
                                            static_cast<float>(1.0 - rule.momentum),
                                            grad_scale,
                                            rule.nesterov,
                                            static_cast<uint32_t>(step),
                                            grad.as<Gradient>(),
                                            m.as<Moment>(),
                                            u.as<float>()};
      constexpr int kPack = kWidePack<float>;
      for_each_pack<kPack>(stream, u.numel(), allow_packs<kPack>(body.gradient, body.moment, body.out), body);
    });
  });
}

void normalise_matrices(Stream& stream, TensorView x_bNK, TensorView sums, TensorView y_bNK) {
  const int64_t matrices = x_bNK.dim(0), count = x_bNK.dim(1) * x_bNK.dim(2), blocks = ceil_div(count, kScaled);
  launch(stream, sum_parts_kernel, matrices * kNormParts, kThreads, 0, x_bNK.as<float>(), count,
         ceil_div(count, kNormParts), sums.as<float>());
  with_float_type(y_bNK.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream, scale_kernel<T>, matrices * blocks, kThreads, 0, x_bNK.as<float>(), count, blocks, sums.as<float>(),
           y_bNK.as<T>());
  });
}

void muon_update(Stream& stream, float lr, float decay, float rate, TensorView x, TensorView w, TensorView copy_bf16) {
  const auto shrink = static_cast<float>(1.0 - static_cast<double>(lr) * static_cast<double>(decay));
  const auto run = [&](auto value_type, auto* weights) {
    using Value = decltype(value_type);
    const Update<Value, std::remove_pointer_t<decltype(weights)>> body{
        shrink, rate, x.as<Value>(), weights, copy_bf16.data == nullptr ? nullptr : copy_bf16.as<bf16>()};
    constexpr int kPack = kWidePack<float>;
    const bool allowed = allow_packs<kPack>(body.value, body.weight) && allow_packs<kPack>(body.copy);
    for_each_pack<kPack>(stream, x.numel(), allowed, body);
  };
  with_float_type(x.dtype, [&](auto type) {
    if (w.dtype == DType::f32) run(type, w.as<float>());
    else run(type, w.as<uint16_t>());
  });
}

}  // namespace mw::gpu
