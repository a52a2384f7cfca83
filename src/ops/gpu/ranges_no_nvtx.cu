#include "ops/gpu/ranges.h"

namespace mw::gpu {

RangeMarker profiler_ranges() { return {}; }

}  // namespace mw::gpu
