// What a machine brings to the table of bytes.
#pragma once

#include "spec/plan.h"

namespace mw {

// Scratch that the operators of this build need for a run of this model with `threads` threads a rank, and what the
// CPU's products take.
Platform measure_platform(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int threads);

}  // namespace mw
