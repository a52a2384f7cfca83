#include "train/memory_meter.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

namespace mw {
namespace {

// The value of "Name:   123 kB" in a /proc file, in bytes.
int64_t read_kilobytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line))
    if (line.rfind(name + ":", 0) == 0) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  return 0;
}

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = -1;
  file >> value;
  return file ? value : -1;
}

}  // namespace

int64_t peak_resident_bytes() { return read_kilobytes("/proc/self/status", "VmHWM"); }
int64_t resident_bytes() { return read_kilobytes("/proc/self/status", "VmRSS"); }

void reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

int64_t available_bytes() {
  int64_t available = read_kilobytes("/proc/meminfo", "MemAvailable");
  if (available == 0) available = std::numeric_limits<int64_t>::max();
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) available = std::min(available, std::max<int64_t>(0, limit - used));
  return available;
}

}  // namespace mw
