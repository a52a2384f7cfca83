// The largest attention logits, for QK-clip (engine/qk_clip.h): attention itself does not return them.
#pragma once

#include "ops/attention.h"

namespace mw {

// largest[i] = the largest scale * q[t].k[s] of head i, over all tokens t and the keys s that they see, or its old
// value if that is larger; a NaN does not count. Shape, q, k and first_T as in attention (ops/attention.h), without
// past keys. largest_H: f32 [H]. Sums are fp32, the logits of tokens are not stored. Scratch: as attention. Does not
// depend on the order of the work. Computes one of the two products of attention's forward pass again; on GPUs in fp32
// arithmetic, whatever the operands are.
void largest_logits(Stream& stream, const AttentionShape& shape, TensorView q_THh, TensorView k_TGh,
                    TensorView largest_H, TensorView first_T = {});

}  // namespace mw
