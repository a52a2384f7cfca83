// Verify: the same few steps in this layout and in one process; loss, auxiliary loss, gradient norm, every gradient and
// every update must agree.
#pragma once

#include "base/error.h"
#include "comm/world.h"
#include "spec/run_spec.h"

namespace mw {

// Rank 0 also runs the reference. Both start from the same weights and take the same steps, on random tokens whose
// labels are ignored unevenly. A token that routes differently passes only when the reference's score gap is
// below 1e-5, and a row that one run alone drops when its gate weight is as near to the capacity's bound: in the first
// layer of a micro-batch that differs, as later ones may differ because of it. The step is then redone with the
// reference's choices and drops. Gradients are compared per tensor, those of experts per expert: |a - b| / max(|b|,
// 1e-6 * global norm), within verify.tolerance, or in bf16 verify.grad_tolerance_bf16. In fp32 a gradient beyond the
// tolerance also passes within several times its rounding noise, which is measured (train/verify_gradients.h): some
// gradients cancel to zero and consist of it. With relu or model.clip_qkv, a
// step whose gradients alone are off, by 1e-2 at most, passes when it does twice with other tokens: rounding may have
// moved a value over the border. Then both update from the reference's gradients: weights and moments of all ranks must
// be the reference's, within a rounding. Prints on rank 0. Returns check_failed beyond tolerance. Collective over the
// world. Errors: config for a layout whose result depends on it by definition.
Exit run_verify(World& world, const RunSpec& run);

}  // namespace mw
