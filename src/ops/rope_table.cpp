#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/rope.h"

namespace mw {
namespace {

// The pair, as a real number, that turns `turns` times within `positions`.
double pair_of_turns(double turns, double theta, double pairs, int64_t positions) {
  return pairs * std::log(static_cast<double>(positions) / (turns * 2 * std::numbers::pi)) / std::log(theta);
}

// Divides some of the frequencies 1 / power, as the rule says.
void slow_down(std::span<float> frequencies, std::span<const float> powers, double theta, const YarnRule& yarn) {
  const auto pairs = static_cast<double>(frequencies.size());
  double first = pair_of_turns(yarn.beta_fast, theta, pairs, yarn.positions),
         last = pair_of_turns(yarn.beta_slow, theta, pairs, yarn.positions);
  if (yarn.truncate) first = std::floor(first), last = std::ceil(last);
  const auto low = static_cast<float>(std::max(first, 0.0)), high = static_cast<float>(std::min(last, 2 * pairs - 1));
  const float width = high == low ? 0.001f : high - low;
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const float slowed = 1.0f / (static_cast<float>(yarn.factor) * powers[j]);
    const float kept = 1.0f - std::clamp((static_cast<float>(j) - low) / width, 0.0f, 1.0f);
    frequencies[j] = slowed * (1.0f - kept) + frequencies[j] * kept;
  }
}

}  // namespace

std::vector<float> rope_frequencies(float theta, int64_t pairs, const YarnRule& yarn) {
  std::vector<float> powers, frequencies;
  for (int64_t j = 0; j < pairs; ++j) {
    // Every step is rounded to fp32; the power itself is taken in double, to be independent of the library's fp32 pow.
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(2 * pairs);
    powers.push_back(static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent))));
    frequencies.push_back(1.0f / powers.back());
  }
  if (yarn.factor != 1) slow_down(frequencies, powers, static_cast<double>(theta), yarn);
  return frequencies;
}

void make_rope_table(std::span<const float> frequencies, float scale, TensorView cos_Sp, TensorView sin_Sp) {
  const auto pairs = static_cast<int64_t>(frequencies.size());
  MW_CHECK(cos_Sp.rank == 2 && cos_Sp.dtype == DType::f32 && sin_Sp.dtype == DType::f32 && sin_Sp.rank == 2 &&
               cos_Sp.shape == sin_Sp.shape && cos_Sp.dim(1) == pairs,
           "cos is {}, sin is {}, expected two f32[S, {}]", cos_Sp.describe(), sin_Sp.describe(), pairs);
  const int64_t S = cos_Sp.dim(0);
  float* cosine = cos_Sp.as<float>();
  float* sine = sin_Sp.as<float>();
  for (int64_t j = 0; j < pairs; ++j)
    for (int64_t t = 0; t < S; ++t) {
      const float angle = static_cast<float>(t) * frequencies[static_cast<size_t>(j)];
      cosine[t * pairs + j] = std::cos(angle) * scale;
      sine[t * pairs + j] = std::sin(angle) * scale;
    }
}

}  // namespace mw
