// Preflight check of a job: identifies its ranks, benchmarks compute, links and disks, and flags outliers.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace mw {

// Identity and measurements of one rank.
struct RankHealth {
  std::string host, program, device;  // program: version and commit
  double flops_per_s = 0;             // an fp32 matrix product on its cores, all ranks at the same time
  double write_bytes_per_s = 0;       // into the folder, synced to disk; 0 without a folder
  std::string folder_error;           // why it could not write; empty: it could
  bool sees_next = true;              // it can read a file that the next rank wrote there
};

// Messages between two neighbouring ranks, in both directions at once.
struct LinkHealth {
  int from = 0, to = 0;
  double bytes_per_s = 0;  // per direction
};

struct JobHealth {
  std::vector<RankHealth> ranks;
  std::vector<LinkHealth> links;
  double all_reduce_seconds = 0;  // of kAllReduceBytes over all ranks
  bool sums_are_right = true;
};
constexpr int64_t kAllReduceBytes = 16 << 20;

struct DoctorOptions {
  std::string program;  // version and commit of this process
  std::string folder;   // where to write; empty: nowhere
  int64_t threads = 0;  // per rank; 0: cores / ranks of the node
};

// Runs the measurements (seconds); the result is the same on every rank. Collective over the world. Errors: comm.
JobHealth examine(World& world, const DoctorOptions& options);

// Lists problems, one line each, naming ranks and hosts; empty: none. A pure function.
//  - programs or devices that differ from those of most ranks;
//  - hosts whose ranks compute at less than 0.7 of the median, single ranks at less than 0.5 of it;
//  - links at less than 0.5 of the median of their kind: within a host, or between two;
//  - a folder that a rank cannot write to, or where it cannot see another rank's file; writing at less than 0.2 of the
//    median;
//  - wrong sums.
std::vector<std::string> find_problems(const JobHealth& health, const std::string& folder);

}  // namespace mw
