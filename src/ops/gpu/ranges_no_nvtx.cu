#include "ops/device.h"

namespace mw {

RangeMarker profiler_ranges() { return {}; }

}  // namespace mw
