#include "ops/rope.h"

#include "ops/cpu/loops.h"

namespace mw::cpu {
namespace {

// Rotates `pairs` pairs by the angles of one position; sign = -1 rotates backwards. out may be in.
template <class T>
void rotate_halves(const T* in, const float* cosine, const float* sine, float sign, int64_t pairs, T* out) {
#pragma omp simd
  for (int64_t j = 0; j < pairs; ++j) {
    const float a = to_float(in[j]), b = to_float(in[j + pairs]), s = sign * sine[j];
    out[j] = from_float<T>(a * cosine[j] - b * s);
    out[j + pairs] = from_float<T>(b * cosine[j] + a * s);
  }
}

template <class T>
void rotate_neighbours(const T* in, const float* cosine, const float* sine, float sign, int64_t pairs, T* out) {
#pragma omp simd
  for (int64_t j = 0; j < pairs; ++j) {
    const float a = to_float(in[2 * j]), b = to_float(in[2 * j + 1]), s = sign * sine[j];
    out[2 * j] = from_float<T>(a * cosine[j] - b * s);
    out[2 * j + 1] = from_float<T>(b * cosine[j] + a * s);
  }
}

}  // namespace

void rope(Stream& stream, TensorView x_THh, TensorView cos_Sp, TensorView sin_Sp, RopeDirection direction,
          TensorView y_THh, RopePairs pairing, TensorView first_T, int64_t first_element) {
  const int64_t T = x_THh.dim(0), H = x_THh.dim(1), h = x_THh.dim(2), pairs = cos_Sp.dim(1), S = cos_Sp.dim(0);
  if (T == 0) return;
  const float* cosine = cos_Sp.as<float>();
  const float* sine = sin_Sp.as<float>();
  const int32_t* first = first_T.data == nullptr ? nullptr : first_T.as<int32_t>();
  const float sign = direction == RopeDirection::forward ? 1.0f : -1.0f;
  with_float_type(x_THh.dtype, [&](auto type) {
    using E = decltype(type);
    const E* x = x_THh.as<E>();
    E* y = y_THh.as<E>();
    const auto rotate = pairing == RopePairs::halves ? rotate_halves<E> : rotate_neighbours<E>;
    for_blocks(stream, T, rows_per_block(H * 2 * pairs), [=](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = t % S - (first == nullptr ? 0 : first[t]);
        for (int64_t head = 0; head < H; ++head) {
          const int64_t at = (t * H + head) * h + first_element;
          rotate(x + at, cosine + position * pairs, sine + position * pairs, sign, pairs, y + at);
        }
      }
    });
  });
}

}  // namespace mw::cpu
