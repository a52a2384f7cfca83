// The only file that includes NVTX, which is a header alone: it looks for a profiler when the first range begins.
#include <nvtx3/nvToolsExt.h>

#include "ops/gpu/ranges.h"

namespace mw::gpu {
namespace {

void push(const char* label) { (void)nvtxRangePushA(label); }
void pop() { (void)nvtxRangePop(); }

}  // namespace

RangeMarker profiler_ranges() { return {push, pop}; }

}  // namespace mw::gpu
