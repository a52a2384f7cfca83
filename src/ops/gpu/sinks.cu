#include "ops/sinks.h"

#include "ops/gpu/attention_library.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kHeadThreads = 1024;

// Where lse of a token and head lies: own kernels write [H, B, S], the library [B, H, S].
struct LsePlace {
  int64_t heads, tokens, seq_len;
  bool by_sequence;
  __device__ int64_t operator()(int64_t token, int64_t head) const {
    return by_sequence ? (token / seq_len * heads + head) * seq_len + token % seq_len : head * tokens + token;
  }
};

LsePlace place_of(Stream& stream, const AttentionShape& shape, DType dtype) {
  return {shape.heads, shape.sequences * shape.seq_len, shape.seq_len,
          is_for_library(dtype) && library_takes(stream, shape)};
}

template <class T, int N>
struct ScaleOutputs {
  T* o;
  const float *lse, *sinks;
  LsePlace place;
  int64_t packs;  // of a head
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / packs, head = row % place.heads;
    const float factor = 1.0f / (1.0f + expf(sinks[head] - lse[place(row / place.heads, head)]));
    const Pack<T, N> before = load<N>(o + i * N);
    Pack<float, N> scaled;
#pragma unroll
    for (int k = 0; k < N; ++k) scaled.at[k] = factor * to_float(before.at[k]);
    store(o + i * N, round_pack<T>(scaled));
  }
};

struct AddToLse {
  float* lse;
  const float* sinks;
  LsePlace place;
  __device__ void operator()(int64_t i) const {
    const int64_t head = i % place.heads;
    float& own = lse[place(i / place.heads, head)];
    const float largest = fmaxf(own, sinks[head]), least = fminf(own, sinks[head]);
    own = largest + log1pf(expf(least - largest));
  }
};

// A block takes a head.
template <class T, int N>
__global__ void __launch_bounds__(kHeadThreads)
    sinks_backward_kernel(const T* o, const T* d_o, const float* lse, const float* sinks, LsePlace place, int64_t width,
                          float* d_sinks) {
  const int64_t head = blockIdx.x, packs = width / N;
  const float sink = sinks[head];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < place.tokens * packs; i += kHeadThreads) {
    const int64_t token = i / packs, at = (token * place.heads + head) * width + i % packs * N;
    const Pack<T, N> x = load<N>(o + at), d = load<N>(d_o + at);
    float product = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) product += to_float(x.at[k]) * to_float(d.at[k]);
    sum += expf(sink - lse[place(token, head)]) * product;
  }
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) d_sinks[head] -= sum;
}

}  // namespace

void add_sinks(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh, TensorView lse_HT) {
  const LsePlace place = place_of(stream, shape, o_THh.dtype);
  const int64_t rows = place.tokens * place.heads, width = shape.value_dim;
  with_float_type(o_THh.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = kWidePack<T>;
    with_pack<kPack>(width % kPack == 0 && allow_packs<kPack>(o_THh.as<T>()), [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      for_each(stream, rows * (width / N),
               ScaleOutputs<T, N>{o_THh.as<T>(), lse_HT.as<float>(), sinks_H.as<float>(), place, width / N});
    });
  });
  for_each(stream, rows, AddToLse{lse_HT.as<float>(), sinks_H.as<float>(), place});
}

void sinks_backward(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh,
                    TensorView lse_HT, TensorView d_o_THh, TensorView d_sinks_H) {
  const LsePlace place = place_of(stream, shape, o_THh.dtype);
  const int64_t width = shape.value_dim;
  with_float_type(o_THh.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = kWidePack<T>;
    with_pack<kPack>(width % kPack == 0 && allow_packs<kPack>(o_THh.as<T>(), d_o_THh.as<T>()), [&](auto pack) {
      launch(stream, sinks_backward_kernel<T, decltype(pack)::value>, shape.heads, kHeadThreads, 0, o_THh.as<T>(),
             d_o_THh.as<T>(), lse_HT.as<float>(), sinks_H.as<float>(), place, width, d_sinks_H.as<float>());
    });
  });
}

}  // namespace mw::gpu
