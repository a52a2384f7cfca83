#include <cmath>

#include "ops/rope.h"

namespace mw {

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

}  // namespace mw
