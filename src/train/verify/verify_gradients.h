// Compares the gradients of `verify`'s two runs, and measures how far rounding alone moves them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "engine/engine.h"
#include "engine/step.h"
#include "train/verify/verify_judge.h"

namespace mw {

// Compares the gradients of the layout with the reference's: one entry per tensor or, of experts, per expert. The worst
// copy of an element counts; where a copy is missing, or a value is not a number, the difference is infinite.
// reference: on rank 0, null on the others. Collective over `comm`, the world of the layout; all ranks get the same
// list.
std::vector<GradientDifference> compare_gradients(Comm& comm, Engine* reference, Engine& layout);

// Fills in what rounding alone changes in each gradient: computes the gradients of a step once more from weights that
// are each moved by one rounding of fp32, and takes the norm of the change. A gradient whose terms cancel changes by
// the rounding errors of those terms, however small the gradient itself is. reference: an fp32 run in one process that
// holds the gradients of the step; weights and gradients are unchanged afterwards. batches, taps: of that step; taps
// must replay its routing. seed: of the directions in which weights move.
void measure_rounding_noise(Engine& reference, std::span<const Batch> batches, const TapProvider& taps, uint64_t seed,
                            std::vector<GradientDifference>& gradients);

}  // namespace mw
