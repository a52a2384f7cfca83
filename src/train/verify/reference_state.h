// Shares the state of `verify`'s reference (one process with the whole model) with the ranks of a layout, and compares
// the two states after an update.
#pragma once

#include <cstdint>
#include <string>

#include "comm/comm.h"
#include "engine/engine.h"

namespace mw {

// `reference`: null on all ranks but rank 0. All functions are collective over `comm`, the world of the layout.

// Copies master weights and moments to the layout, then refreshes the copies that forward reads.
void share_weights(Comm& comm, Engine* reference, Engine& layout);
// Copies gradients into the elements that each rank owns, so that both can be updated from the same gradients.
void share_gradients(Comm& comm, Engine* reference, Engine& layout);

// How far the layout's weights, their bf16 copies and moments are from the reference's, over everything that its ranks
// hold.
struct StateDifference {
  int64_t elements = 0, differing = 0;  // on all ranks; differing: by more than a rounding of fp32 (copies: of bf16)
  // The largest relative difference over tensors: |difference of weights| / (lr * sqrt(n)), |difference of moments| /
  // their norm.
  double worst = 0;
  std::string name;  // the tensor of `worst`
};
StateDifference compare_state(Comm& comm, Engine* reference, Engine& layout, double lr);

}  // namespace mw
