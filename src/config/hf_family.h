// The Hugging Face family that a model of a [model] table fits.
#pragma once

#include "config/model_spec.h"

namespace mw {

// The same model as one of the family whose config.json can say all that it is: qwen3_moe, mixtral, olmoe, minimax_m2,
// glm4_moe, deepseek_v2 or deepseek_v3. Weights need no change. A model that has a family already comes back as it is.
// Errors: unsupported, naming the features that no family has together.
ModelSpec fit_hf_family(ModelSpec model);

}  // namespace mw
