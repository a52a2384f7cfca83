// Which cores of its node a rank computes on.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace mw {

int cores_of_node();

// The cores that the launcher confined this process to, in ascending order; none where it may use all of its node.
std::vector<int> bound_cores();

// Threads a rank gets: `asked`, or the cores this node lets the process use, shared by the node's ranks; at least 1.
int threads_per_rank(int64_t asked, int local_size);

// "0-3,8" as numbers; none where the text is not of that form.
std::vector<int> parse_core_list(const std::string& text);

// Keeps the calling thread, and those it starts from then on, on the cores next to a GPU, where the launcher left it
// free to move. Returns these cores, or "" where nothing was changed: a CPU, a bound process, an unknown topology.
std::string stay_near(Device device);

}  // namespace mw
