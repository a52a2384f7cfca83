#include "ops/sinks.h"

#include <cmath>

#include "ops/cpu/loops.h"

namespace mw::cpu {

void add_sinks(Stream& stream, const AttentionShape& shape, TensorView sinks_H, TensorView o_THh, TensorView lse_HT) {
  const int64_t H = shape.heads, T = shape.sequences * shape.seq_len, width = shape.value_dim;
  const float* sinks = sinks_H.as<float>();
  float* lse_of = lse_HT.as<float>();
  with_float_type(o_THh.dtype, [&]<class E>(E) {
    E* first = o_THh.as<E>();
    for_blocks(stream, T, rows_per_block(H * width), [=](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t head = 0; head < H; ++head) {
          float& lse = lse_of[head * T + t];
          const float sink = sinks[head], largest = std::max(lse, sink),
                      all = largest + std::log1p(std::exp(std::min(lse, sink) - largest)), factor = std::exp(lse - all);
          lse = all;
          E* o = first + (t * H + head) * width;
#pragma omp simd
          for (int64_t d = 0; d < width; ++d) o[d] = from_float<E>(factor * to_float(o[d]));
        }
    });
  });
}

void sinks_backward(Stream& stream, const AttentionShape& shape, DType, TensorView sinks_H, TensorView lse_HT,
                    TensorView delta_HT, TensorView d_sinks_H) {
  const int64_t T = shape.sequences * shape.seq_len;
  const float *sinks = sinks_H.as<float>(), *lse = lse_HT.as<float>(), *delta = delta_HT.as<float>();
  float* d_sinks = d_sinks_H.as<float>();
  for_blocks(stream, shape.heads, 1, [=](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      double sum = 0;
      for (int64_t at = head * T; at < (head + 1) * T; ++at)
        sum += static_cast<double>(std::exp(sinks[head] - lse[at]) * delta[at]);
      d_sinks[head] -= static_cast<float>(sum);
    }
  });
}

}  // namespace mw::cpu
