// Enumerations that both the plan and the operators use, with the words of those that a run file chooses.
#pragma once

#include <cstdint>

#include "base/enum_words.h"

namespace mw {

// swiglu: silu(gate) * up, three matrices. clamped_swiglu (gpt-oss): g * sigmoid(alpha * g) * (u + 1), where g is gate,
// at most `limit`, and u is up, between -limit and limit; three matrices. gelu: tanh form, as Megatron fuses it. relu.
// The last two have two matrices.
enum class Activation : uint8_t { swiglu, gelu, relu, clamped_swiglu };
template <>
inline constexpr EnumWord<Activation> kEnumWords<Activation>[] = {{Activation::swiglu, "swiglu"},
                                                                  {Activation::gelu, "gelu"},
                                                                  {Activation::relu, "relu"},
                                                                  {Activation::clamped_swiglu, "clamped_swiglu"}};

// Projections in the pre-activation: 2 with a gate (gate and up), otherwise 1.
inline int64_t halves_of(Activation kind) {
  return kind == Activation::swiglu || kind == Activation::clamped_swiglu ? 2 : 1;
}

// How router logits become scores.
enum class ScoreFunction : uint8_t { softmax, sigmoid };
template <>
inline constexpr EnumWord<ScoreFunction> kEnumWords<ScoreFunction>[] = {{ScoreFunction::softmax, "softmax"},
                                                                        {ScoreFunction::sigmoid, "sigmoid"}};

// Which two of a head's h elements rotary embedding rotates together: (j, j + h/2), or neighbours (2j, 2j + 1).
enum class RopePairs : uint8_t { halves, neighbours };

// How a GPU computes expert products: one grouped GEMM over all experts in our own kernels, or one GEMM of the vendor's
// library per expert. automatic: whichever is expected to be faster for the shapes.
enum class ExpertProducts : uint8_t { automatic, grouped, per_expert };
template <>
inline constexpr EnumWord<ExpertProducts> kEnumWords<ExpertProducts>[] = {{ExpertProducts::automatic, "auto"},
                                                                          {ExpertProducts::grouped, "grouped"},
                                                                          {ExpertProducts::per_expert, "per_expert"}};

// Partial sums by which Muon finds the norm of a matrix (ops/muon.h).
constexpr int64_t kNormParts = 64;

}  // namespace mw
