// Loads of experts as the planner takes them.
#pragma once

#include "engine/engine.h"
#include "engine/step.h"
#include "planner/auto_transport.h"

namespace mw {

// By MoE layer, the rows of the experts in a step, in the order of ranks and slots.
MeasuredLoads loads_by_place(const Engine& engine, const StepStats& stats);

}  // namespace mw
