#include "ops/rope.h"

#include <cmath>

#include "ops/cpu/loops.h"

namespace mw {
namespace {

// Rotates the pairs (in[j], in[j + pairs]) by the angles of one position; sign = -1 rotates backwards. out may be in.
template <class T>
void rotate_pairs(const T* in, const float* cosine, const float* sine, float sign, int64_t pairs, T* out) {
#pragma omp simd
  for (int64_t j = 0; j < pairs; ++j) {
    const float a = to_float(in[j]), b = to_float(in[j + pairs]), s = sign * sine[j];
    out[j] = from_float<T>(a * cosine[j] - b * s);
    out[j + pairs] = from_float<T>(b * cosine[j] + a * s);
  }
}

}  // namespace

void make_rope_table(float theta, TensorView cos_Sh, TensorView sin_Sh) {
  MW_CHECK(cos_Sh.rank == 2 && cos_Sh.dtype == DType::f32 && sin_Sh.dtype == DType::f32 && sin_Sh.rank == 2 &&
               cos_Sh.shape == sin_Sh.shape,
           "cos is {}, sin is {}, expected two f32[S, h/2]", cos_Sh.describe(), sin_Sh.describe());
  const int64_t S = cos_Sh.dim(0), pairs = cos_Sh.dim(1);
  float* cosine = cos_Sh.as<float>();
  float* sine = sin_Sh.as<float>();
  for (int64_t j = 0; j < pairs; ++j) {
    // Every step is rounded to fp32; the power itself is taken in double, to be independent of the library's fp32 pow.
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(2 * pairs);
    const float power = static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
    const float frequency = 1.0f / power;
    for (int64_t t = 0; t < S; ++t) {
      const float angle = static_cast<float>(t) * frequency;
      cosine[t * pairs + j] = std::cos(angle);
      sine[t * pairs + j] = std::sin(angle);
    }
  }
}

void rope(Stream& stream, TensorView x_THh, TensorView cos_Sh, TensorView sin_Sh, RopeDirection direction,
          TensorView y_THh) {
  const TraceScope scope(stream.trace(), Work::elementwise, "rope");
  MW_CHECK(x_THh.rank == 3 && x_THh.dim(2) % 2 == 0, "x is {}, expected [T, H, h] with an even h", x_THh.describe());
  MW_CHECK(y_THh.dtype == x_THh.dtype && y_THh.shape == x_THh.shape, "x is {}, y is {}", x_THh.describe(),
           y_THh.describe());
  const int64_t T = x_THh.dim(0), H = x_THh.dim(1), pairs = x_THh.dim(2) / 2;
  MW_CHECK(cos_Sh.rank == 2 && cos_Sh.dim(1) == pairs && sin_Sh.rank == 2 && sin_Sh.shape == cos_Sh.shape,
           "cos is {}, sin is {}, expected two [S, {}]", cos_Sh.describe(), sin_Sh.describe(), pairs);
  if (T == 0) return;
  const int64_t S = cos_Sh.dim(0);
  MW_CHECK(S > 0, "a table without positions for {} tokens", T);
  const float* cosine = cos_Sh.as<float>();
  const float* sine = sin_Sh.as<float>();
  const float sign = direction == RopeDirection::forward ? 1.0f : -1.0f;
  with_float_type(x_THh.dtype, [&](auto type) {
    using E = decltype(type);
    const E* x = x_THh.as<E>();
    E* y = y_THh.as<E>();
    for_blocks(stream, T, rows_per_block(H * 2 * pairs), [=](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = t % S;
        for (int64_t head = 0; head < H; ++head) {
          const int64_t at = (t * H + head) * 2 * pairs;
          rotate_pairs(x + at, cosine + position * pairs, sine + position * pairs, sign, pairs, y + at);
        }
      }
    });
  });
}

}  // namespace mw
