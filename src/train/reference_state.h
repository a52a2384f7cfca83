// The state of `verify`'s reference, one process that holds the whole model, into what each rank of a layout holds of
// it, and the comparison of the two after an update.
#pragma once

#include <cstdint>
#include <string>

#include "comm/comm.h"
#include "train/engine.h"

namespace mw {

// `reference`: on rank 0, null on the others. All calls are collective over `comm`, the world of the layout.

// Master weights and moments; then what forward reads of them is refreshed.
void share_weights(Comm& comm, Engine* reference, Engine& layout);
// Gradients, into the elements that each rank owns: both can then be updated from the same.
void share_gradients(Comm& comm, Engine* reference, Engine& layout);

// How far weights, their copies in bf16 that products read, and moments of the layout are from the reference's, of all
// that its ranks hold.
struct StateDifference {
  int64_t elements = 0, differing = 0;  // on all ranks; beyond a rounding of fp32, of copies of bf16
  // Of a tensor, the largest over tensors, over a share of: |weights' differences| of lr * sqrt(n), |moments'| of their
  // own norm.
  double worst = 0;
  std::string name;  // whose
};
StateDifference compare_state(Comm& comm, Engine* reference, Engine& layout, double lr);

}  // namespace mw
