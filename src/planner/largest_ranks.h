// The ranks of a stage that may need most memory.
#pragma once

#include <vector>

#include "config/run_spec.h"
#include "layout/mesh.h"
#include "planner/layout.h"
#include "planner/memory.h"

namespace mw {

// Ranks of a stage, each once: in every stage, one of these places has the rank that needs most memory, or as much
// (with ZeRO, nearly as much). layout: one that the ranks, the batch and the model allow (planner/search.h).
std::vector<int> largest_ranks(const RunSpec& run, const Layout& layout, const Mesh& mesh, MemoryModel& memory);

}  // namespace mw
