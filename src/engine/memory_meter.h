// Measures the memory of this process, as the kernel counts it, and of its GPU.
#pragma once

#include <cstdint>
#include <string>

#include "ops/device.h"

namespace mw {

// The resident set now; 0 where /proc has no such data.
int64_t resident_bytes();
// The resident set now, and its peak since the start or the last reset, both without file pages (of data, checkpoints
// and libraries), which the kernel drops when memory is short.
int64_t own_resident_bytes();
int64_t peak_own_resident_bytes();
// Resets the peak to the present resident set. Best effort: without permission the peak is not reset.
void reset_peak_resident();
// Memory that is still available on this node (MemAvailable, and the limits of the cgroup, version 2 or 1, mounted at
// `cgroup`); a very large number where unknown. File pages count as free: the kernel drops them on demand.
int64_t available_bytes(const std::string& cgroup = "/sys/fs/cgroup");

// Memory taken since the meter was created: on a CPU the growth of this process's peak resident set without file pages;
// on a GPU device memory of all processes, because the device does not tell them apart.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device device);
  int64_t taken() const;
  int64_t taken_now() const;  // on a CPU without memory released since the peak
  // Resets the peak to the memory taken now. Best effort, as reset_peak_resident.
  void forget_peak();

 private:
  Device device_;
  int64_t before_ = 0;
};

}  // namespace mw
