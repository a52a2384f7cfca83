// A preflight of a job: who its ranks are, how fast each computes, sends and writes, and which of them stand out.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace mw {

// What one rank is and measures.
struct RankHealth {
  std::string host, program, device;  // program: version and commit
  double flops_per_s = 0;             // an fp32 matrix product on its cores, all ranks at the same time
  double write_bytes_per_s = 0;       // into the folder, to the disk; 0 without a folder
  std::string folder_error;           // why it could not write; empty: it could
  bool sees_next = true;              // it reads in the folder what the next rank wrote
};

// Messages between two neighbours, both directions at once.
struct LinkHealth {
  int from = 0, to = 0;
  double bytes_per_s = 0;  // of one direction
};

struct JobHealth {
  std::vector<RankHealth> ranks;
  std::vector<LinkHealth> links;
  double all_reduce_seconds = 0;  // of kAllReduceBytes over all ranks
  bool sums_are_right = true;
};
constexpr int64_t kAllReduceBytes = 16 << 20;

struct DoctorOptions {
  std::string program;  // of this process
  std::string folder;   // where to write; empty: nowhere
  int64_t threads = 0;  // per rank; 0: cores / ranks of the node
};

// Measures; the same on every rank. Takes seconds. Collective over the world. Errors: comm.
JobHealth examine(World& world, const DoctorOptions& options);

// What is wrong, one line each, naming ranks and hosts; empty: nothing. A pure function.
//  - programs or devices that differ from those of most ranks;
//  - hosts whose ranks compute at less than 0.7 of the median, single ranks at less than 0.5 of it;
//  - links at less than 0.5 of the median of their kind: within a host, or between two;
//  - a folder that a rank cannot write to, or where it does not see another's file; writing at less than 0.2 of the
//    median;
//  - sums that come out wrong.
std::vector<std::string> find_problems(const JobHealth& health, const std::string& folder);

}  // namespace mw
