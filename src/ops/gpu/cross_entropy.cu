// Softmax cross-entropy: one block per row. A first pass over the row finds the maximum and the sum of exponentials
// together, a second writes the gradient; a thread reads a pack of logits before it writes the gradient there.
#include "ops/cross_entropy.h"

#include <cfloat>
#include <cmath>

#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kRowThreads = 512;
constexpr int kWide = kWidePack<float>;

// The largest logit seen, and the sum of e^(logit - top). The start is finite, so that a logit of -inf adds e^-inf = 0;
// a NaN never becomes the top but does reach the sum.
struct Running {
  float top = -FLT_MAX, sum = 0.0f;
};

template <int N>
__device__ void include(Running& running, const Pack<float, N>& x) {
  float top = running.top;
#pragma unroll
  for (int k = 0; k < N; ++k) top = x.at[k] > top ? x.at[k] : top;
  if (top > running.top) running.sum *= expf(running.top - top);
  running.top = top;
#pragma unroll
  for (int k = 0; k < N; ++k) running.sum += expf(x.at[k] - top);
}

// d_logits may be null.
template <class T, int N>
__global__ void cross_entropy_kernel(const float* logits, const int32_t* labels, float scale, float* loss, T* d_logits,
                                     int64_t classes) {
  const int64_t row = blockIdx.x, at = row * classes, step = static_cast<int64_t>(blockDim.x) * N;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int32_t label = labels[row];
  if (label == kIgnoreLabel) {
    if (threadIdx.x == 0) loss[row] = 0.0f;
    if (d_logits == nullptr) return;
    for (int64_t i = first; i < classes; i += step) store(d_logits + at + i, Pack<T, N>{});
    return;
  }
  // The host cannot see a wrong label without waiting: it makes loss and gradient NaN.
  const bool valid = label >= 0 && label < classes;
  const float own = valid ? logits[at + label] : NAN;  // read before the second pass may overwrite it

  Running running;
#pragma unroll 4
  for (int64_t i = first; i < classes; i += step) include(running, load<N>(logits + at + i));
  const float top = reduce_block(running.top, Maximum());
  const float sum = reduce_block(running.sum * expf(running.top - top), Sum());
  const float margin = own - top;
  if (threadIdx.x == 0) loss[row] = logf(sum) - margin;
  if (d_logits == nullptr) return;

  const float factor = valid ? scale / sum : NAN, d_own = scale * (expf(margin) / sum - 1.0f);
  for (int64_t i = first; i < classes; i += step) {
    const Pack<float, N> x = load<N>(logits + at + i);
    Pack<float, N> d;
#pragma unroll
    for (int k = 0; k < N; ++k) d.at[k] = i + k == label ? d_own : factor * expf(x.at[k] - top);
    store(d_logits + at + i, round_pack<T>(d));
  }
}

}  // namespace

void cross_entropy(Stream& stream, TensorView logits_CV, TensorView labels_C, float scale, TensorView loss_C,
                   TensorView d_logits_CV) {
  const int64_t C = logits_CV.dim(0), V = logits_CV.dim(1);
  const bool with_gradient = d_logits_CV.data != nullptr;
  with_float_type(with_gradient ? d_logits_CV.dtype : DType::f32, [&](auto type) {
    using T = decltype(type);
    T* d_logits = with_gradient ? d_logits_CV.as<T>() : nullptr;
    const bool wide = V % kWide == 0 && allow_packs<kWide>(logits_CV.as<float>(), d_logits);
    launch(stream, wide ? cross_entropy_kernel<T, kWide> : cross_entropy_kernel<T, 1>, C, kRowThreads, 0,
           logits_CV.as<float>(), labels_C.as<int32_t>(), scale, loss_C.as<float>(), d_logits, V);
  });
}

}  // namespace mw::gpu
