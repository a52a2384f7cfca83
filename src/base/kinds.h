// The kinds that both the plan (spec) and the operators (ops) name.
#pragma once

#include <cstdint>

namespace mw {

// swiglu: silu(gate) * up, three matrices. gelu: tanh form, as Megatron fuses it. relu. The last two have two matrices.
enum class Activation : uint8_t { swiglu, gelu, relu };

// Halves of the pre-activation: gate and up for swiglu, one else.
inline int64_t halves_of(Activation kind) { return kind == Activation::swiglu ? 2 : 1; }

// How router logits become scores.
enum class ScoreFunction : uint8_t { softmax, sigmoid };

// Which elements rotary embedding of h of them turns together: (j, j + h/2), or neighbours (2j, 2j + 1).
enum class RopePairs : uint8_t { halves, neighbours };

// How a GPU multiplies rows with the weights of their experts: own kernels over the rows of all experts at once, or one
// product of the vendor's library per expert. automatic: whichever the work at hand is known to favour.
enum class ExpertProducts : uint8_t { automatic, grouped, per_expert };

}  // namespace mw
