// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace mw {

// Peak resident set (VmHWM) since the start or the last reset, and resident set now; 0 where /proc does not tell.
int64_t peak_resident_bytes();
int64_t resident_bytes();
// Starts the peak anew at the present resident set. Best effort: without the right the peak simply goes on.
void reset_peak_resident();
// Memory that could still be had on this node (MemAvailable, and the cgroup's limit); a very large number where
// unknown.
int64_t available_bytes();

}  // namespace mw
