#include "comm/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "ops/device.h"

namespace mw {

int cores_of_node() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

std::vector<int> bound_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) >= cores_of_node()) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  return cores;
}

int threads_per_rank(int64_t asked, int local_size) {
  if (asked > 0) return static_cast<int>(asked);
  // A launcher that binds each rank to its own cores has already shared them out.
  const auto bound = static_cast<int>(bound_cores().size());
  return std::max(1, bound > 0 ? bound : cores_of_node() / std::max(1, local_size));
}

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0, length = 0;
    if (std::sscanf(range.c_str(), "%d-%d%n", &first, &last, &length) != 2) {
      if (std::sscanf(range.c_str(), "%d%n", &first, &length) != 1) return {};
      last = first;
    }
    const bool whole = range.find_first_not_of("\n", static_cast<size_t>(length)) == std::string::npos;
    if (!whole || first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

std::string stay_near(Device device) {
  if (device.kind == DeviceKind::cpu) return "";
  std::string text;
  try {
    text = read_text_file("/sys/bus/pci/devices/" + address_of(device) + "/local_cpulist", 4096);
  } catch (const Error&) {
    return "";
  }
  const std::vector<int> cores = parse_core_list(text), bound = bound_cores();
  cpu_set_t near;
  CPU_ZERO(&near);
  for (const int core : cores) CPU_SET(core, &near);
  if (cores.empty() || (!bound.empty() && bound != cores)) return "";
  if (bound.empty() && sched_setaffinity(0, sizeof near, &near) != 0) return "";
  return text.substr(0, text.find('\n'));
}

}  // namespace mw
