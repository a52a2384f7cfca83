// Weights of experts that the ranks of an EP group gather (transport gather_weights), as data: the pieces, the forms of
// the matrices, and the memory that they and their gradients take. Byte table, transport and planner read it.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_spec.h"
#include "config/run_spec.h"
#include "layout/placement.h"

namespace mw {

struct Platform;

// What products read of the two matrices of an expert, up [c * F, D] and down [D, F].
struct ExpertForms {
  int64_t up_n = 0, up_k = 0, down_n = 0, down_k = 0;
  int64_t up_bytes = 0, down_bytes = 0;  // of one form
  bool packed = false;                   // forms are packed ones (bf16), else the fp32 values
  bool one_form = true;                  // both directions read the same form
  bool up_twice = false;                 // backward reads both forms of up, as it computes h again
  int64_t forward_bytes() const { return up_bytes + down_bytes; }
  int64_t backward_bytes() const { return forward_bytes() + (up_twice ? up_bytes : 0); }
  int64_t gradient_bytes() const { return size_of(DType::f32) * (up_n * up_k + down_n * down_k); }
};

// local: the layer as a rank computes it (local_layer); width: D.
ExpertForms expert_forms(const LayerSpec& local, int64_t width, DType dtype, bool recomputes_hidden,
                         const Platform& platform);

struct WeightGather {
  std::vector<int> experts;                  // global, in the order (piece, rank, slot)
  std::vector<std::vector<int64_t>> counts;  // experts of each rank, by piece: neighbouring slots
  ExpertForms forms;

  int64_t pieces() const { return static_cast<int64_t>(counts.size()); }
  int64_t experts_in(int64_t piece) const;
  int64_t largest() const;  // experts of the largest piece
  // Place of each expert in `experts`.
  std::vector<int32_t> position_of_expert() const;

  // Memory for the largest piece of weights in any form (layout/weight_cache.h), and for the fp32 gradients of a piece,
  // those of up first.
  int64_t slot_bytes() const;
  int64_t down_gradients_begin() const;
  int64_t gradient_elements() const;
};

// In `pieces` pieces, or in as many as the rank with most experts has if that is fewer: each has about equally many
// experts of every rank.
WeightGather make_weight_gather(const ExpertPlacement& placement, int64_t pieces, const ExpertForms& forms);

}  // namespace mw
