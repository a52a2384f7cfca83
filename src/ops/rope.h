// Rotary position embedding, "half" convention: pairs (j, j + h/2), angle = position * theta^(-2j/h).
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace mw {

// Fills cos and sin, f32 [S, h/2], for positions 0..S-1. Angles are computed as Hugging Face does: inverse frequency
// and product in fp32.
void make_rope_table(float theta, TensorView cos_Sh, TensorView sin_Sh);

enum class RopeDirection : uint8_t { forward, backward };

// y = x [T, H, h] (f32 or bf16, same dtype; y may alias x) rotated; token t has position t mod S. backward rotates the
// other way, which is the exact gradient. h must be even. Overwrites.
void rope(Stream& stream, TensorView x_THh, TensorView cos_Sh, TensorView sin_Sh, RopeDirection direction,
          TensorView y_THh);

}  // namespace mw
