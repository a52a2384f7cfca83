#include "planner/pipelines.h"

#include <algorithm>

namespace mw {
int64_t enough_micro_batches(const Layout& layout) {
  const int64_t full = int64_t{2} * layout.pp * (layout.chunks + 1);
  if (layout.micro_batches <= full) return layout.micro_batches;
  return full + (layout.micro_batches - full) % layout.pp;
}

Pipelines::Pipelines(const ModelSpec& model, int64_t seq_len, std::string stage_layers)
    : model_(model), seq_len_(seq_len), stage_layers_(std::move(stage_layers)) {}

const std::vector<int64_t>& Pipelines::first_layers(const PipelineShape& shape) {
  // With one stage a rank the kind of schedule does not matter.
  const ScheduleKind kind = shape.chunks > 1 ? shape.kind : ScheduleKind::one_f_one_b;
  const auto [entry, is_new] = cuts_.try_emplace({kind, shape.ranks, shape.chunks});
  if (!is_new) return entry->second;
  const auto listed = stage_layers_.empty() ? 0 : std::count(stage_layers_.begin(), stage_layers_.end(), ',') + 1;
  return entry->second = split_layers(model_, shape, seq_len_, listed == shape.stages() ? stage_layers_ : "");
}

const std::vector<std::vector<StagePlan>>& Pipelines::stages_of(const Layout& layout) {
  PipelineShape shape = layout.pipeline();
  shape.micro_batches = layout.schedule == ScheduleKind::gpipe ? layout.micro_batches : enough_micro_batches(layout);
  const auto [entry, is_new] = stages_.try_emplace({shape.kind, shape.ranks, shape.chunks, shape.micro_batches});
  if (!is_new) return entry->second;
  shape.micro_batches = enough_micro_batches(layout);
  const Schedule schedule = make_schedule(shape);
  for (int rank = 0; rank < shape.ranks; ++rank)
    entry->second.push_back(plan_stages(schedule, rank, first_layers(shape)));
  if (shape.kind == ScheduleKind::gpipe)  // keeps all
    for (std::vector<StagePlan>& rank : entry->second) rank[0].slots = layout.micro_batches;
  return entry->second;
}

}  // namespace mw
