// Choice of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "config/run_spec.h"

namespace mw {

// What to do about a model that computes values that are not finite.
inline constexpr const char* kNotFiniteHint = "use an earlier checkpoint, or compute in fp32 (train.dtype = \"fp32\")";

// Index of a logit, drawn with probabilities softmax(logits / sample.temperature) among the sample.top_k largest, and
// of these among the fewest largest whose probabilities add up to sample.top_p. temperature 0: the largest, of equals
// the first. uniform: a random number in [0, 1). logits: at least one. Errors: numeric, for logits that are not finite.
int32_t choose_token(std::span<const float> logits, const SampleSpec& spec, float uniform);

}  // namespace mw
