// Cuts of a model into stages and what a schedule keeps alive in them, remembered: layouts of a search share them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "config/model_spec.h"
#include "layout/stages.h"
#include "planner/layout.h"

namespace mw {

// A number of micro-batches, as small as possible, whose schedule keeps as many alive as that of the layout's; less
// than those by a multiple of the pipeline's ranks.
int64_t enough_micro_batches(const Layout& layout);

class Pipelines {
 public:
  // stage_layers: as mesh.stage_layers; holds for layouts with as many stages as it lists.
  Pipelines(const ModelSpec& model, int64_t seq_len, std::string stage_layers);

  // As split_layers.
  const std::vector<int64_t>& first_layers(const PipelineShape& shape);
  // Of every pipeline rank, as plan_stages. Once the pipeline is full, further micro-batches keep no more alive: long
  // steps are looked up as shorter ones.
  const std::vector<std::vector<StagePlan>>& stages_of(const Layout& layout);

 private:
  const ModelSpec& model_;
  int64_t seq_len_;
  std::string stage_layers_;
  std::map<std::tuple<ScheduleKind, int, int>, std::vector<int64_t>> cuts_;
  std::map<std::tuple<ScheduleKind, int, int, int64_t>, std::vector<std::vector<StagePlan>>> stages_;
};

}  // namespace mw
