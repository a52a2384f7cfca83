// Memory of this process as the kernel counts it, and of its GPU.
#pragma once

#include <cstdint>
#include <string>

#include "ops/device.h"

namespace mw {

// Peak resident set (VmHWM) since the start or the last reset, and resident set now; 0 where /proc does not tell.
int64_t peak_resident_bytes();
int64_t resident_bytes();
// Starts the peak anew at the present resident set. Best effort: without the right the peak simply goes on.
void reset_peak_resident();
// Memory that could still be had on this node (MemAvailable, and the limits of the cgroup, version 2 or 1, mounted at
// `cgroup`); a very large number where unknown. Pages of files count as free: the kernel drops them when asked for
// more.
int64_t available_bytes(const std::string& cgroup = "/sys/fs/cgroup");

// What was taken of a GPU's memory since this was made: by whatever process, the device does not tell. 0 on the CPU.
class DeviceMemoryMeter {
 public:
  explicit DeviceMemoryMeter(Device device) : device_(device), free_before_(free_now()) {}
  int64_t taken() const { return free_before_ - free_now(); }

 private:
  int64_t free_now() const { return device_.kind == DeviceKind::cpu ? 0 : free_bytes(device_); }
  Device device_;
  int64_t free_before_;
};

}  // namespace mw
