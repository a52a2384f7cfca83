// Whether other processes use the cores that a run computes on.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace mw {

// What the cores of this node had done at one moment.
struct CpuTimes {
  double at = 0;             // seconds of a steady clock
  double own = 0;            // CPU seconds of this process, all its threads
  std::vector<double> busy;  // seconds that each core was not idle since it booted; empty where /proc does not say
};
CpuTimes read_cpu_times();

// The busy seconds of each core in the text of /proc/stat, whose unit is 1 / ticks_per_second. Time that a hypervisor
// gave to other machines counts as busy. Empty when the text has another form.
std::vector<double> parse_busy_seconds(const std::string& stat, double ticks_per_second);

// All in cores, of one rank that is bound to its own cores, else of all ranks of a node.
struct MachineLoad {
  double others = 0;     // used by processes that are not of this job
  double available = 0;  // that the ranks may use
  double wanted = 0;     // threads of the ranks
  int ranks = 1;
};

// The load since `before`, where it is highest in the world. threads: of each rank. Waits until at least 0.2 s have
// passed since `before`: the kernel counts in steps of 10 ms. Collective over the world; no load where /proc does not
// say.
MachineLoad measure_load(World& world, const CpuTimes& before, int threads);

// A sentence that says how busy the cores are and what to do, or "" while the run's threads have cores of their own.
std::string describe_load(const MachineLoad& load);

}  // namespace mw
