#include "comm/machine_load.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/host.h"
#include "base/text.h"
#include "comm/cores.h"

namespace mw {
namespace {

constexpr double kWindow = 0.2;  // seconds

double own_cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Cores that were busy between two moments, of those in `cores`, or of all where it is empty.
double busy_cores(const CpuTimes& before, const CpuTimes& now, const std::vector<int>& cores) {
  const size_t known = std::min(before.busy.size(), now.busy.size());
  double busy = 0;
  for (size_t core = 0; core < known; ++core)
    if (cores.empty() || std::binary_search(cores.begin(), cores.end(), static_cast<int>(core)))
      busy += now.busy[core] - before.busy[core];
  return busy / (now.at - before.at);
}

}  // namespace

std::vector<double> parse_busy_seconds(const std::string& stat, double ticks_per_second) {
  std::vector<double> busy;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    // "cpu3 user nice system idle iowait irq softirq steal ..."; the line "cpu ..." is their sum.
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (!name.starts_with("cpu") || name.size() == 3) continue;
    const std::vector<int> core = parse_core_list(name.substr(3));
    double ticks[8] = {};
    for (double& t : ticks) fields >> t;
    if (core.size() != 1 || !fields) return {};
    busy.resize(std::max(busy.size(), static_cast<size_t>(core[0]) + 1));  // cores that are offline have no line
    busy[static_cast<size_t>(core[0])] =
        (std::accumulate(std::begin(ticks), std::end(ticks), 0.0) - ticks[3] - ticks[4]) / ticks_per_second;
  }
  return busy;
}

CpuTimes read_cpu_times() {
  CpuTimes times;
  times.at = now_seconds();
  times.own = own_cpu_seconds();
  try {
    times.busy = parse_busy_seconds(read_text_file("/proc/stat"), static_cast<double>(::sysconf(_SC_CLK_TCK)));
  } catch (const Error&) {
  }
  return times;
}

MachineLoad measure_load(World& world, const CpuTimes& before, int threads) {
  CpuTimes now = read_cpu_times();
  if (const double left = kWindow - (now.at - before.at); left > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(left));
    now = read_cpu_times();
  }
  const double own = (now.own - before.own) / (now.at - before.at);
  double of_ranks = own;
  world.comm().all_reduce_sum(std::span(&of_ranks, 1));
  const std::vector<int> bound = bound_cores();
  MachineLoad load;
  load.ranks = bound.empty() ? world.local_size() : 1;
  load.available = bound.empty() ? cores_of_node() : static_cast<double>(bound.size());
  load.wanted = load.ranks * threads;
  load.others = std::max(0.0, busy_cores(before, now, bound) - (bound.empty() ? of_ranks / world.nodes() : own));
  world.comm().all_reduce_max(std::span(&load.others, 1));
  return load;
}

std::string describe_load(const MachineLoad& load) {
  constexpr double kNoise = 0.4;  // cores that the system itself may use for a moment
  if (load.others < kNoise || load.others + load.wanted < load.available + kNoise) return {};
  const double free = std::max(0.0, load.available - load.others);
  const auto threads = static_cast<int>(std::lround(std::max(1.0, std::floor(free / load.ranks + 0.25))));
  const std::string remedy = threads * load.ranks < load.wanted
                                 ? fmt::format("set train.threads={}, or stop the other processes", threads)
                                 : "stop the other processes, or start fewer ranks";
  return fmt::format(
      "other processes use {:.1f} of the {:.0f} cores that this run computes on ({}): steps will be "
      "slower; {}",
      load.others, load.available, counted(std::llround(load.wanted), "thread"), remedy);
}

}  // namespace mw
