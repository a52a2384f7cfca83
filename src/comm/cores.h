// CPU affinity: which cores of its node a rank computes on.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace mw {

int cores_of_node();

// The cores to which the launcher bound this process, ascending; empty where it may use its whole node.
std::vector<int> bound_cores();

// Threads per rank: `asked`, or the cores that this process may use divided by the node's ranks; at least 1.
int threads_per_rank(int64_t asked, int local_size);

// Parses "0-3,8"; empty where the text does not have that form.
std::vector<int> parse_core_list(const std::string& text);

// Binds the calling thread, and threads that it starts later, to the cores next to a GPU, unless the process is
// bound. Returns these cores if it is bound to them now, else "": on a CPU, in a process that the launcher bound to
// others, or with an unknown topology.
std::string stay_near(Device device);

}  // namespace mw
