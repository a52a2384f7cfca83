#include "layout/state_map.h"

#include <algorithm>

#include "base/error.h"

namespace mw {

std::string state_name(StateKind kind, const ParamRow& row) {
  switch (kind) {
    case StateKind::param: return "param." + row.name;
    case StateKind::adam_m: return "adam_m." + row.name;
    case StateKind::adam_v: return "adam_v." + row.name;
  }
  MW_CHECK(false, "state {}", static_cast<int>(kind));
}

bool has_state(StateKind kind, const ParamRow& row) {
  return kind == StateKind::param || (row.trained && (kind == StateKind::adam_m || !row.muon));
}

StateMap::StateMap(const Plan& plan)
    : model_(plan.model),
      run_(plan.run),
      mesh_(plan.mesh),
      placements_(plan.placements),
      moment_dtype_(plan.run.moments),
      rows_(plan.params) {
  const std::vector<int64_t> first_layers =
      split_layers(model_, plan.pipeline, run_.train.seq_len, run_.mesh.stage_layers);
  const Schedule schedule = make_schedule(plan.pipeline);
  for (int pp = 0; pp < mesh_.pp; ++pp) stages_.push_back(plan_stages(schedule, pp, first_layers));
  for (int rank = 0; rank < mesh_.world; ++rank) {
    const MeshCoords coords = coords_of(mesh_, rank);
    const std::array key = {coords.pp, coords.tp, coords.ep};
    if (blocks_.count(key) == 0) blocks_[key] = blocks_of(coords);
  }
}

StateMap::Blocks StateMap::blocks_of(const MeshCoords& coords) const {
  std::vector<ParamRow> own;
  std::vector<LocalParam> locals;
  std::vector<size_t> indices;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!holds(stages_[static_cast<size_t>(coords.pp)], rows_[i], model_.tie_embeddings)) continue;
    own.push_back(rows_[i]);
    locals.push_back(local_param(rows_[i], model_, placements_->layers, mesh_, coords));
    indices.push_back(i);
  }
  GradientBlocks made = make_gradient_blocks(own, locals, mesh_, coords, run_);
  Blocks out{std::vector<int64_t>(rows_.size()), std::move(made.blocks)};
  for (size_t i = 0; i < indices.size(); ++i) out.begins[indices[i]] = made.begins[i];
  return out;
}

bool StateMap::is_copy(size_t row, int rank) const {
  const std::vector<StagePlan>& stages = stages_[static_cast<size_t>(coords_of(mesh_, rank).pp)];
  return rows_[row].role == ParamRole::embedding && !stages.front().embeds;
}

std::vector<HeldSlice> StateMap::slices(StateKind kind, size_t row_index, int rank) const {
  const ParamRow& row = rows_[row_index];
  const MeshCoords coords = coords_of(mesh_, rank);
  if (!has_state(kind, row)) return {};
  if (!holds(stages_[static_cast<size_t>(coords.pp)], row, model_.tie_embeddings)) return {};
  const LocalParam local = local_param(row, model_, placements_->layers, mesh_, coords);
  const Blocks& blocks = blocks_.at({coords.pp, coords.tp, coords.ep});
  const StateElements elements =
      state_elements(row, blocks.blocks[static_cast<size_t>(local.replicas)], blocks.begins[row_index], local.numel(),
                     member_of(local.replicas, mesh_, coords, run_), run_.train.dtype);
  return held_slices(row.shape, local.pieces, kind == StateKind::param ? elements.held : elements.owned);
}

}  // namespace mw
