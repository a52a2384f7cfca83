// The GPU that kernels of warpgroups find in tests, which may change it.
#pragma once

#include "ops/gpu/tiling.h"

namespace mw::gpu {

inline Processors emulated_processors{2, 0};

}  // namespace mw::gpu
