// Verify: the same few steps in this layout and in one process; loss, auxiliary loss, gradient norm and every gradient
// must agree.
#pragma once

#include "base/error.h"
#include "comm/world.h"
#include "spec/run_spec.h"

namespace mw {

// Rank 0 also runs the reference. Each step starts from the reference's weights and optimizer state, on random tokens
// whose labels are ignored unevenly. A token that routes differently passes only when the reference's score gap is
// below 1e-5, and a row that one run alone drops when its gate weight is as near to the capacity's bound: in the first
// layer of a micro-batch that differs, as later ones may differ because of it. The step is then redone with the
// reference's choices and drops. Gradients are compared per tensor, those of experts per expert: |a - b| / max(|b|,
// 1e-6 * global norm). fp32 is judged on everything (verify.tolerance), bf16 on the loss. Prints on rank 0. Returns
// check_failed beyond tolerance. Collective over the world. Errors: config for a layout whose result depends on it by
// definition.
Exit run_verify(World& world, const RunSpec& run);

}  // namespace mw
