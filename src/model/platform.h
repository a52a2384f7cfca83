// What a machine brings to the table of bytes.
#pragma once

#include "core/device.h"
#include "spec/plan.h"

namespace mw {

// Scratch that the operators of this build need for a run of this model with `threads` threads a rank on such a
// device, and the form of weights that its products take.
Platform measure_platform(const ModelSpec& model, const RunSpec& run, const Mesh& mesh, int threads,
                          DeviceKind device = DeviceKind::cpu);

}  // namespace mw
