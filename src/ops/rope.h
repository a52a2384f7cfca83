// Rotary position embedding (RoPE): rotates pairs of elements by position * frequency.
#pragma once

#include <span>
#include <vector>

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// YaRN (Peng et al. 2023, section 3.2): pairs that rotate less than beta_slow times within `positions` have their
// frequency divided by `factor`, pairs that rotate more than beta_fast times keep it, pairs between are interpolated
// linearly, from one whole pair to another if `truncate` is true.
struct YarnRule {
  double factor = 1;  // 1: none
  double beta_fast = 32, beta_slow = 1;
  int64_t positions = 0;
  bool truncate = true;
};

// theta^(-j/pairs) for every pair j, adjusted by YaRN if `yarn` asks for it. Rounded to fp32 at each step, as in
// Hugging Face.
std::vector<float> rope_frequencies(float theta, int64_t pairs, const YarnRule& yarn = {});

// Fills cos and sin, f32 [S, pairs], for positions 0..S-1 (angles computed in fp32, as in Hugging Face), multiplied by
// `scale`.
void make_rope_table(std::span<const float> frequencies, float scale, TensorView cos_Sp, TensorView sin_Sp);

enum class RopeDirection : uint8_t { forward, backward };

// y = x [T, H, h] (f32 or bf16, same dtype; y may alias x) with elements [begin, begin + 2 * pairs) of every head
// rotated; other elements of y keep their values. Token t has position t mod S, or, with first_T (i32 [T], as in
// ops/attention.h), t mod S - first[t], which may be negative where cos and sin are slices of longer tables.
// RopeDirection::backward computes the gradient. Overwrites.
void rope(Stream& stream, TensorView x_THh, TensorView cos_Sp, TensorView sin_Sp, RopeDirection direction,
          TensorView y_THh, RopePairs pairs = RopePairs::halves, TensorView first_T = {}, int64_t begin = 0);

}  // namespace mw
