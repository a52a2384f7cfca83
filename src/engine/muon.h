// Muon's part of an update (train.optimizer = "muon").
#pragma once

#include "engine/engine.h"
#include "engine/step.h"

namespace mw {

// With train.optimizer = "muon", updates the elements that this rank owns of every parameter with ParamRow::muon:
// momentum, orthogonal matrices (ops/muon.h) and weight decay; layout/muon_plan.h says which rank does what.
// grad_scale: the clip factor. Weights of other ranks are not gathered (engine/zero.h). Collective over the stage.
void update_by_muon(Engine& engine, const UpdateRule& rule, float grad_scale);

}  // namespace mw
