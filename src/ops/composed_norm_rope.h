// norm_rope by the operators that it fuses, for backends and heads without kernels of their own.
#pragma once

#include "ops/norm_rope.h"

namespace mw {

decltype(norm_rope) composed_norm_rope;
decltype(norm_rope_apply) composed_norm_rope_apply;
decltype(norm_rope_backward) composed_norm_rope_backward;

}  // namespace mw
