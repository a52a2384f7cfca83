// Ranks that compute slowly (debug.slow), as machines of unequal speed would: for tests, on CPUs.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace mw {

// Refuses a value of debug.slow that is not a list of ranks below `ranks` and their speeds. Errors: config;
// unsupported, on a GPU.
void check_slow_ranks(const std::string& slow, int ranks, DeviceKind device);

// The speed of `rank` in `step`, relative to its own: "1:0.5,2:0.8@100" slows rank 1 down to half, and rank 2 from step
// 100 on; of several entries that apply the last counts. 1 where none does. Errors: config.
double speed_of(const std::string& slow, int rank, int64_t step);

// Makes this rank compute at that speed from now on (core/trace.h). Errors: config.
void slow_down(Engine& engine, int64_t step);

}  // namespace mw
