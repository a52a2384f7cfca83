// Which rank of a layout holds which elements of the states of a model: master weights and moments, what a
// checkpoint stores.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/gradient_blocks.h"
#include "layout/plan.h"
#include "layout/tensor_slice.h"

namespace mw {

enum class StateKind : uint8_t { param, adam_m, adam_v };
inline constexpr std::array kStateKinds = {StateKind::param, StateKind::adam_m, StateKind::adam_v};

// The name of a state in checkpoints: "adam_m.layers.0.moe.w_up". Muon's momentum is adam_m, too.
std::string state_name(StateKind kind, const ParamRow& row);
// Every parameter has weights, trained ones a first moment, and those that AdamW updates a second one.
bool has_state(StateKind kind, const ParamRow& row);

// The states of all ranks. Pure and deterministic: the plan of any rank gives the same map.
class StateMap {
 public:
  // Keeps no reference to the plan.
  explicit StateMap(const Plan& plan);

  int ranks() const { return mesh_.world; }
  const std::vector<ParamRow>& rows() const { return rows_; }  // of the whole model
  // The parts of a row's tensor that a rank holds, in the order of its memory. Empty where it holds none.
  std::vector<HeldSlice> slices(StateKind kind, size_t row, int rank) const;
  // Whether the rank's tensor is the copy of tied embeddings on the last stage: its moments may differ from those of
  // the first stage, which count.
  bool is_copy(size_t row, int rank) const;
  // The dtype in which elements of a state are stored in checkpoints, and sent: f32, or that of the moments.
  DType dtype(StateKind kind) const { return kind == StateKind::param ? DType::f32 : moment_dtype_; }

 private:
  // The ranks of one pipeline, tensor-parallel and expert-parallel coordinate hold blocks of equal size.
  struct Blocks {
    std::vector<int64_t> begins;  // by row of the model
    std::array<GradientBlock, kReplicas> blocks;
  };
  Blocks blocks_of(const MeshCoords& coords) const;

  ModelSpec model_;
  RunSpec run_;
  Mesh mesh_;
  SharedPlacements placements_;
  DType moment_dtype_;
  std::vector<ParamRow> rows_;
  std::vector<std::vector<StagePlan>> stages_;   // by pipeline coordinate
  std::map<std::array<int, 3>, Blocks> blocks_;  // by pipeline, tensor-parallel and expert-parallel coordinate
};

}  // namespace mw
