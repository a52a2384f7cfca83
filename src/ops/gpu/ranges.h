// Scopes of the trace as ranges of the vendor's profiler (NVTX), where it has them.
#pragma once

#include "core/trace.h"

namespace mw::gpu {

// Without a profiler a range is a call through a pointer. Null functions where there are no ranges.
RangeMarker profiler_ranges();

}  // namespace mw::gpu
