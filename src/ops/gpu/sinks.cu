#include "ops/sinks.h"

#include "ops/gpu/attention_choice.h"
#include "ops/gpu/launch.h"
#include "ops/gpu/operators.h"
#include "ops/gpu/pack.h"
#include "ops/gpu/reduce.h"

namespace mw::gpu {
namespace {

constexpr int kHeadThreads = 1024;
constexpr int kTokens = 4;  // of a sequence, which a block scales
constexpr int kAtOnce = 4;  // packs that a thread has under way

LsePlace place_of(Stream& stream, const AttentionShape& shape, DType dtype) {
  return place_lse(choose_attention(stream, shape, dtype), shape);
}

// tiles: of a sequence. packs: of a row of o. Blocks begin at the end of o, which attention has just written: some of
// it is still in L2, and the next operator begins at the front.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add_sinks_kernel(T* o_THh, float* lse_HT, const float* sinks_H, LsePlace place, int64_t seq_len, int64_t tiles,
                     int heads, int packs) {
  extern __shared__ float factors[];  // of each row
  const int64_t block = gridDim.x - 1 - blockIdx.x, sequence = block / tiles, token = block % tiles * kTokens;
  const int tokens = static_cast<int>(seq_len - token < kTokens ? seq_len - token : kTokens),
            thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < heads * kTokens; i += kThreads) {
    const int head = i / kTokens, row = i % kTokens;
    if (row >= tokens) continue;
    float& lse = lse_HT[place(head, sequence) + token + row];
    const float own = lse, sink = sinks_H[head], largest = fmaxf(own, sink), least = fminf(own, sink);
    factors[row * heads + head] = 1.0f / (1.0f + expf(sink - own));
    lse = largest + log1pf(expf(least - largest));
  }
  __syncthreads();

  const int count = tokens * heads * packs;
  T* o = o_THh + (sequence * seq_len + token) * heads * packs * N;
  for (int begin = thread; begin < count; begin += kAtOnce * kThreads) {
    Pack<T, N> before[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (begin + j * kThreads < count) before[j] = load<N>(o + (begin + j * kThreads) * N);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * kThreads;
      if (i >= count) break;
      const float factor = factors[i / packs];
      Pack<float, N> scaled;
#pragma unroll
      for (int k = 0; k < N; ++k) scaled.at[k] = factor * to_float(before[j].at[k]);
      store(o + i * N, round_pack<T>(scaled));
    }
  }
}

// A block takes a head.
__global__ void __launch_bounds__(kHeadThreads)
    sinks_backward_kernel(const float* lse_HT, const float* delta_HT, const float* sinks_H, LsePlace place, int tokens,
                          int seq_len, float* d_sinks_H) {
  const int64_t head = blockIdx.x;
  const float sink = sinks_H[head];
  float sum = 0.0f;
#pragma unroll 4
  for (int token = static_cast<int>(threadIdx.x); token < tokens; token += kHeadThreads) {
    const int sequence = token / seq_len;
    const int64_t i = place(head, sequence) + token - sequence * seq_len;
    sum += expf(sink - lse_HT[i]) * delta_HT[i];
  }
  sum = reduce_block(sum, Sum());
  if (threadIdx.x == 0) d_sinks_H[head] -= sum;
}

}  // namespace

void add_sinks(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh, TensorView lse_HT) {
  const LsePlace place = place_of(stream, shape, o_THh.dtype);
  const int64_t tiles = ceil_div(shape.seq_len, kTokens), width = shape.value_dim;
  with_float_type(o_THh.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = kWidePack<T>;
    with_pack<kPack>(width % kPack == 0 && allow_packs<kPack>(o_THh.as<T>()), [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      launch(stream, add_sinks_kernel<T, N>, shape.sequences * tiles, kThreads,
             static_cast<size_t>(kTokens * shape.heads) * sizeof(float), o_THh.as<T>(), lse_HT.as<float>(),
             sinks_H.as<float>(), place, shape.seq_len, tiles, shape.heads, width / N);
    });
  });
}

void sinks_backward(Stream& stream, const AttentionShape& shape, DType dtype, TensorView sinks_H, TensorView lse_HT,
                    TensorView delta_HT, TensorView d_sinks_H) {
  launch(stream, sinks_backward_kernel, shape.heads, kHeadThreads, 0, lse_HT.as<float>(), delta_HT.as<float>(),
         sinks_H.as<float>(), place_of(stream, shape, dtype), shape.sequences * shape.seq_len, shape.seq_len,
         d_sinks_H.as<float>());
}

}  // namespace mw::gpu
