// Gradients over replicas: plain sums in fp32, dense weights over DP and routed experts over EDP. The loss was seeded
// with 1/N of the whole step, so nothing is averaged or rescaled (DESIGN section 4).
#pragma once

#include "comm/world.h"
#include "core/stream.h"
#include "model/param_store.h"

namespace mw {

// In place, over every trained gradient. Collective over DP and EDP. skip_router: a test-only fault.
void sum_gradients(Stream& stream, ParamStore& params, MeshComms& comms, bool skip_router = false);

// L2 norm of the whole model's gradient, every element counted once. Equal on all ranks. Collective over EP.
double global_gradient_norm(Stream& stream, ParamStore& params, MeshComms& comms);

}  // namespace mw
