// Rotary position embedding: pairs of elements are turned by position * frequency.
#pragma once

#include <span>
#include <vector>

#include "base/kinds.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// YaRN (Peng et al. 2023, section 3.2): pairs that turn less than beta_slow times within `positions` get their
// frequency divided by `factor`, those that turn more than beta_fast times keep it, those between are mixed linearly.
struct YarnRule {
  double factor = 1;  // 1: none
  double beta_fast = 32, beta_slow = 1;
  int64_t positions = 0;
};

// theta^(-j/pairs) for every pair j, by YaRN if it says so. Rounded step by step to fp32, as Hugging Face does.
std::vector<float> rope_frequencies(float theta, int64_t pairs, const YarnRule& yarn = {});

// Fills cos and sin, f32 [S, pairs], of the angles of positions 0..S-1 (product in fp32, as Hugging Face takes it),
// multiplied by `scale`.
void make_rope_table(std::span<const float> frequencies, float scale, TensorView cos_Sp, TensorView sin_Sp);

enum class RopeDirection : uint8_t { forward, backward };

// y = x [T, H, h] (f32 or bf16, same dtype; y may alias x) with the last 2 * pairs elements of every head rotated;
// token t has position t mod S, with first_T (i32 [T], as in ops/attention.h) t mod S - first[t]. Where heads are wider
// than that, y must be x: the elements before stay as they are. backward is the gradient of forward. Overwrites.
void rope(Stream& stream, TensorView x_THh, TensorView cos_Sp, TensorView sin_Sp, RopeDirection direction,
          TensorView y_THh, RopePairs pairs = RopePairs::halves, TensorView first_T = {});

}  // namespace mw
