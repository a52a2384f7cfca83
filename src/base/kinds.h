// Enumerations that both the plan (spec) and the operators (ops) use.
#pragma once

#include <cstdint>

namespace mw {

// swiglu: silu(gate) * up, three matrices. gelu: tanh form, as Megatron fuses it. relu. The last two have two matrices.
enum class Activation : uint8_t { swiglu, gelu, relu };

// Projections in the pre-activation: 2 for swiglu (gate and up), otherwise 1.
inline int64_t halves_of(Activation kind) { return kind == Activation::swiglu ? 2 : 1; }

// How router logits become scores.
enum class ScoreFunction : uint8_t { softmax, sigmoid };

// Which two of a head's h elements rotary embedding rotates together: (j, j + h/2), or neighbours (2j, 2j + 1).
enum class RopePairs : uint8_t { halves, neighbours };

// How a GPU computes expert products: one grouped GEMM over all experts in our own kernels, or one GEMM of the vendor's
// library per expert. automatic: whichever is expected to be faster for the shapes.
enum class ExpertProducts : uint8_t { automatic, grouped, per_expert };

}  // namespace mw
