// Verify: runs the same few steps in this layout and in one process, and checks that loss, auxiliary loss, gradient
// norm, every gradient and every update agree.
#pragma once

#include "base/error.h"
#include "comm/world.h"
#include "config/run_spec.h"

namespace mw {

// Rank 0 also runs the reference. Both start from the same weights and run the same steps, on random tokens with
// unevenly ignored labels. Prints on rank 0. Returns check_failed beyond tolerance. Collective over the world. Errors:
// config for a layout whose result differs by definition, such as moe.capacity_domain = "rank".
//
// Routing: a token that is routed differently passes only if the reference's score gap is below 1e-5. A row that only
// one of the runs drops passes only if its gate weight is within 1e-5 of the capacity's bound. Only the first layer of
// a micro-batch that differs is judged, because later ones may differ as a consequence. The step is then repeated with
// the reference's choices and drops.
// Gradients are compared per tensor, those of experts per expert: |a - b| / max(|b|, 1e-6 * global norm) must be within
// verify.tolerance, or in bf16 verify.grad_tolerance_bf16. In fp32 a gradient beyond the tolerance also passes within
// several times its measured rounding noise (train/verify/verify_gradients.h): some gradients cancel to zero and
// consist of noise. With relu or model.clip_qkv, a step whose gradients alone are off, by at most 1e-2, passes when it
// agrees twice with other tokens: rounding may have moved a value across the kink. Updates: both update from the
// reference's gradients; weights and moments of all ranks must equal the reference's, within a rounding.
Exit run_verify(World& world, const RunSpec& run);

}  // namespace mw
