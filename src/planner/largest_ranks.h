// The ranks of a stage that may need most memory.
#pragma once

#include <vector>

#include "config/run_spec.h"
#include "layout/mesh.h"
#include "planner/layout.h"
#include "planner/memory.h"

namespace mw {

// Ranks of pipeline rank 0, each once: the one with most memory is among them, or one that needs as much. layout: one
// that the ranks, the batch and the model allow (planner/search.h).
std::vector<int> largest_ranks(const RunSpec& run, const Layout& layout, const Mesh& mesh, MemoryModel& memory);

}  // namespace mw
