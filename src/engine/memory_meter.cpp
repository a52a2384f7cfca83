#include "engine/memory_meter.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace mw {
namespace {

constexpr const char* kStatus = "/proc/self/status";

int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  file >> value;
  return file ? value : -1;
}

// The number after `name` at the start of a line; 0 when there is none.
int64_t read_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(name)) return std::atoll(line.c_str() + name.size());
  return 0;
}

// "Name:   123 kB" of a /proc file, in bytes.
int64_t read_kilobytes(const std::string& path, const std::string& name) { return read_field(path, name + ":") * 1024; }

// What the limit of one cgroup leaves; a very large number without a limit.
int64_t left_of(const std::string& limit_file, const std::string& used_file, const std::string& statistics,
                const std::string& prefix) {
  const int64_t limit = read_number(limit_file), used = read_number(used_file);
  if (limit <= 0 || used < 0) return std::numeric_limits<int64_t>::max();
  const int64_t of_files =
      read_field(statistics, prefix + "inactive_file ") + read_field(statistics, prefix + "active_file ");
  // More files than use: the kernel's counters are read one after the other.
  const int64_t held = std::max<int64_t>(used - of_files, 0);
  return std::max<int64_t>(limit - held, 0);
}

}  // namespace

int64_t resident_bytes() { return read_kilobytes(kStatus, "VmRSS"); }
int64_t own_resident_bytes() { return resident_bytes() - read_kilobytes(kStatus, "RssFile"); }
// The kernel keeps no peak of RssFile; file pages are rarely dropped, so the present value stands for it.
int64_t peak_own_resident_bytes() { return read_kilobytes(kStatus, "VmHWM") - read_kilobytes(kStatus, "RssFile"); }

void reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
}

int64_t available_bytes(const std::string& cgroup) {
  int64_t available = read_kilobytes("/proc/meminfo", "MemAvailable");
  if (available == 0) available = std::numeric_limits<int64_t>::max();
  const std::string v2 = cgroup + "/memory.", v1 = cgroup + "/memory/memory.";
  return std::min({available, left_of(v2 + "max", v2 + "current", v2 + "stat", ""),
                   left_of(v1 + "limit_in_bytes", v1 + "usage_in_bytes", v1 + "stat", "total_")});
}

MemoryMeter::MemoryMeter(Device device)
    : device_(device), before_(device.kind == DeviceKind::cpu ? own_resident_bytes() : free_bytes(device)) {
  forget_peak();
}

int64_t MemoryMeter::taken() const {
  return device_.kind == DeviceKind::cpu ? peak_own_resident_bytes() - before_ : taken_now();
}

int64_t MemoryMeter::taken_now() const {
  return device_.kind == DeviceKind::cpu ? own_resident_bytes() - before_ : before_ - free_bytes(device_);
}

void MemoryMeter::forget_peak() {
  if (device_.kind == DeviceKind::cpu) reset_peak_resident();
}

}  // namespace mw
