// Memory of this process as the kernel counts it, and of its GPU.
#pragma once

#include <cstdint>
#include <string>

#include "ops/device.h"

namespace mw {

// Resident set now; 0 where /proc does not tell.
int64_t resident_bytes();
// The same and its peak since the start or the last reset, without pages of files (of data, checkpoints and libraries),
// which the kernel drops when memory is short.
int64_t own_resident_bytes();
int64_t peak_own_resident_bytes();
// Starts the peak anew at the present resident set. Best effort: without the right the peak simply goes on.
void reset_peak_resident();
// Memory that could still be had on this node (MemAvailable, and the limits of the cgroup, version 2 or 1, mounted at
// `cgroup`); a very large number where unknown. Pages of files count as free: the kernel drops them when asked for
// more.
int64_t available_bytes(const std::string& cgroup = "/sys/fs/cgroup");

// Memory taken since the meter was made: on a CPU the growth of this process's peak resident set without pages of
// files, on a GPU device memory, by whatever process: the device does not tell.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device device);
  int64_t taken() const;
  int64_t taken_now() const;  // on a CPU without what was given back since the peak
  // What is taken now is the peak from here on. Best effort, as reset_peak_resident.
  void forget_peak();

 private:
  Device device_;
  int64_t before_ = 0;
};

}  // namespace mw
