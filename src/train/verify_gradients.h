// How far the gradients of `verify`'s two runs differ.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "train/engine.h"
#include "train/verify_judge.h"

namespace mw {

// Compares the gradients of the layout with the reference's: one entry per tensor or, of experts, per expert. The worst
// copy of an element counts; where a copy is missing, or a value is not a number, the difference is infinite.
// reference: on rank 0, null on the others. Collective over `comm`, the world of the layout; all ranks get the same
// list.
std::vector<GradientDifference> compare_gradients(Comm& comm, Engine* reference, Engine& layout);

}  // namespace mw
