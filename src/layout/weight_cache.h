// The slots of gathered weights (moe.weight_slots) as data. All MoE layers of a rank share them; a slot holds one piece
// (layout/weight_gather.h) in the form that a pass reads. The order in which the passes of a step use pieces is known
// before the run. The plan therefore says of every use whether its piece is gathered or in a slot already, and in
// which: what makes room is the piece whose next use is furthest away (Belady's rule), so that no order gathers less
// often.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/schedule/schedule.h"
#include "layout/stages.h"
#include "layout/weight_gather.h"

namespace mw {

// What the slots need to know of a layer. Pieces: 0 where no weights are gathered.
struct LayerPieces {
  int64_t pieces = 0;
  bool one_form = true;  // both passes read the same form
  int64_t bytes = 0;     // of the largest piece, as a slot holds it
  // Pieces that differ in their experts or in their form.
  int64_t different() const { return one_form ? pieces : 2 * pieces; }
};
LayerPieces pieces_of(const WeightGather& gather);

// The slots of a rank: `wanted` of them (moe.weight_slots; 0: as many as have a use), each for the largest piece.
struct WeightSlots {
  int64_t wanted = 0;
  int64_t different = 0;  // pieces of all layers: with so many slots each is gathered once
  int64_t bytes = 0;      // of a slot
  // count: how many of the rank's layers are like this one.
  void add(const LayerPieces& layer, int64_t count = 1);
  int64_t count() const;
  int64_t all_bytes() const { return count() * bytes; }
};

// A pass through one layer: it uses all pieces of the layer in their order.
struct LayerPass {
  int64_t layer = 0;
  bool backward = false;
};
// Of a rank that has `stages`: those of a step, and those of a forward pass alone. Layers of any kind.
std::vector<LayerPass> passes_of_step(const std::vector<Action>& schedule, const std::vector<StagePlan>& stages);
std::vector<LayerPass> passes_of_forward(const std::vector<StagePlan>& stages);

// A piece that a pass computes with.
struct WeightUse {
  int64_t layer = 0, piece = 0;
  bool backward = false;
  bool gathers = true;  // else the slot has it already
  int64_t slot = 0;
};
// All uses of these passes, from empty slots. While a pass computes with a piece, its next one is gathered: not into
// the same slot, unless there is only one. layers: by number. slots: above 0 where a layer has pieces.
std::vector<WeightUse> plan_weight_uses(const std::vector<LayerPass>& passes, const std::vector<LayerPieces>& layers,
                                        int64_t slots);

// How often each piece of a layer is gathered, by piece, in the forms that the two passes read.
struct PieceGathers {
  std::vector<int64_t> forward, backward;
};
// Adds the gathers of these uses. counts: by layer.
void add_gathers(std::vector<PieceGathers>& counts, const std::vector<WeightUse>& uses);

// What a plan says of a rank's slots.
struct WeightCachePlan {
  WeightSlots slots;
  std::vector<WeightUse> step, forward;  // of a step, and of a forward pass alone (validation, sampling)
  std::vector<PieceGathers> gathers;     // of a step, by layer of the model: of all stages
};
// For pipeline rank `rank` of the schedule. first_layers: as split_layers gives them. layers: all of the model.
WeightCachePlan plan_weight_cache(const Schedule& schedule, int rank, const std::vector<int64_t>& first_layers,
                                  const std::vector<LayerPieces>& layers, int64_t wanted_slots);

}  // namespace mw
