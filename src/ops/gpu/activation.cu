// Activations: one wave per row, whose lanes take packs of 16 bytes where the width and the addresses allow it, and
// single elements otherwise. A pack is read before it is written by the same thread, so outputs may alias inputs.
#include "ops/activation_functions.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kRowsPerBlock = 4;  // one per wave
constexpr int kRowThreads = kRowsPerBlock * kWave;

__device__ int64_t row_of_wave() {
  return static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kWave;
}

using activation_detail::Point;

struct Sigmoid {
  __host__ __device__ static float of(float x) { return 1.0f / (1.0f + expf(-x)); }
};

template <class Function, class T, int N>
__global__ void activate_kernel(Function function, const T* h, T* a, int64_t rows, int64_t width) {
  const int64_t row = row_of_wave();
  if (row >= rows) return;
  const T* gate = h + row * width * (Function::kGated ? 2 : 1);
  for (int64_t i = static_cast<int64_t>(threadIdx.x % kWave) * N; i < width; i += kWave * N) {
    const Pack<T, N> x = load<N>(gate + i);
    Pack<T, N> up;
    Pack<float, N> y;
    if constexpr (Function::kGated) up = load<N>(gate + width + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float value = function.value(to_float(x.at[k]));
      if constexpr (Function::kGated) value *= function.factor(to_float(up.at[k])).value;
      y.at[k] = value;
    }
    store(a + row * width + i, round_pack<T>(y));
  }
}

template <class Function, class T, int N>
__global__ void activate_backward_kernel(Function function, const T* h, const T* d_a, const float* weights, T* d_h,
                                         T* a, float* d_weights, int64_t rows, int64_t width) {
  const int64_t row = row_of_wave(), gate = row * width * (Function::kGated ? 2 : 1);
  if (row >= rows) return;
  const float weight = weights == nullptr ? 1.0f : weights[row];
  float product = 0.0f;
  for (int64_t i = static_cast<int64_t>(threadIdx.x % kWave) * N; i < width; i += kWave * N) {
    const Pack<T, N> x = load<N>(h + gate + i), d = load<N>(d_a + row * width + i);
    Pack<T, N> up;
    Pack<float, N> d_gate, d_up, y;
    if constexpr (Function::kGated) up = load<N>(h + gate + width + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Point point = function.point(to_float(x.at[k]));
      const float d_value = to_float(d.at[k]), weighted = weight * d_value;
      float value = point.value, d_point = weighted;
      if constexpr (Function::kGated) {
        const Point factor = function.factor(to_float(up.at[k]));
        value *= factor.value;
        d_point *= factor.value;
        d_up.at[k] = weighted * point.value * factor.slope;
      }
      product += d_value * value;
      d_gate.at[k] = d_point * point.slope;
      y.at[k] = weight * value;
    }
    store(d_h + gate + i, round_pack<T>(d_gate));
    if constexpr (Function::kGated) store(d_h + gate + width + i, round_pack<T>(d_up));
    store(a + row * width + i, round_pack<T>(y));
  }
  if (d_weights == nullptr) return;
  product = reduce_wave(product, Sum());
  if (threadIdx.x % kWave == 0) d_weights[row] = product;
}

// Calls body with the function and the elements of a pack.
template <int N, class Body>
void with_activation(const ActivationRule& rule, bool wide, Body&& body) {
  activation_detail::with_activation<Sigmoid>(
      rule, [&](auto function) { with_pack<N>(wide, [&](auto pack) { body(function, pack); }); });
}

}  // namespace

void activate(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView a_RF) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1);
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = kWidePack<T>;
    const bool wide = F % kWide == 0 && allow_packs<kWide>(h_RcF.as<T>(), a_RF.as<T>());
    with_activation<kWide>(rule, wide, [&](auto function, auto pack) {
      launch(stream, activate_kernel<decltype(function), T, decltype(pack)::value>, ceil_div(R, kRowsPerBlock),
             kRowThreads, 0, function, h_RcF.as<T>(), a_RF.as<T>(), R, F);
    });
  });
}

void activate_backward(Stream& stream, const ActivationRule& rule, TensorView h_RcF, TensorView d_a_RF,
                       TensorView weight_R, TensorView d_h_RcF, TensorView a_RF, TensorView d_weight_R) {
  const int64_t R = a_RF.dim(0), F = a_RF.dim(1);
  const float* weights = weight_R.data == nullptr ? nullptr : weight_R.as<float>();
  float* d_weights = d_weight_R.data == nullptr ? nullptr : d_weight_R.as<float>();
  with_float_type(h_RcF.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = kWidePack<T>;
    const bool wide =
        F % kWide == 0 && allow_packs<kWide>(h_RcF.as<T>(), d_a_RF.as<T>(), d_h_RcF.as<T>(), a_RF.as<T>());
    with_activation<kWide>(rule, wide, [&](auto function, auto pack) {
      launch(stream, activate_backward_kernel<decltype(function), T, decltype(pack)::value>, ceil_div(R, kRowsPerBlock),
             kRowThreads, 0, function, h_RcF.as<T>(), d_a_RF.as<T>(), weights, d_h_RcF.as<T>(), a_RF.as<T>(), d_weights,
             R, F);
    });
  });
}

}  // namespace mw::gpu
