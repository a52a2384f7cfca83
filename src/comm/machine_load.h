// Measures whether other processes use the cores that a run computes on.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace mw {

// Cumulative CPU times of this node and process at one moment.
struct CpuTimes {
  double at = 0;             // seconds of a steady clock
  double own = 0;            // CPU seconds of this process, all its threads
  std::vector<double> busy;  // non-idle seconds of each core since boot; empty where /proc has no such data
};
CpuTimes read_cpu_times();

// Parses the busy seconds of each core from the text of /proc/stat, whose unit is 1 / ticks_per_second. Time stolen by
// a hypervisor counts as busy. Empty when the text has another form.
std::vector<double> parse_busy_seconds(const std::string& stat, double ticks_per_second);

// In cores: of one rank if it is bound to its own cores, otherwise of all ranks of a node.
struct MachineLoad {
  double others = 0;     // used by processes that are not of this job
  double available = 0;  // that the ranks may use
  double wanted = 0;     // threads of the ranks
  int ranks = 1;
};

// The load since `before`, of the most loaded node or rank in the world. threads: of each rank. Waits until at least
// 0.2 s have passed since `before`, because the kernel counts in steps of 10 ms. Collective over the world; zero where
// /proc has no such data.
MachineLoad measure_load(World& world, const CpuTimes& before, int threads);

// A warning that says how busy the cores are and what to do, or "" when the run's threads have cores of their own.
std::string describe_load(const MachineLoad& load);

}  // namespace mw
