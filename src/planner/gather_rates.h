// How often the layers of a layout gather weights: the plan of their slots (layout/weight_cache.h), for searches over
// many layouts.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/memory.h"
#include "planner/pipelines.h"

namespace mw {

class GatherRates {
 public:
  // Passes in a micro-batch, on average over a step; one counts as a whole if all of its pieces are gathered.
  struct Rate {
    double forward = 0, backward = 0;
  };
  // References must outlive this object. slots: moe.weight_slots.
  GatherRates(MemoryModel& memory, Pipelines& pipelines, int64_t slots);
  // By layer of the model; empty where no layer gathers weights. For more micro-batches than fill the pipeline, the
  // last ones that were planned stand for those that follow. Not for several threads at once.
  std::vector<Rate> of(const Layout& layout, const Mesh& mesh);

 private:
  const std::vector<int64_t>& pieces_of(const Layout& layout, const Mesh& mesh);  // by kind of layer
  // Passes in a step of so many micro-batches, by layer.
  const std::vector<Rate>& passes_of(const Layout& layout, const Mesh& mesh, int64_t micro_batches);

  MemoryModel& memory_;
  Pipelines& pipelines_;
  int64_t slots_;
  bool one_form_ = true;
  std::map<int, std::vector<int64_t>> pieces_;  // by EP
  // By schedule, PP, stages a rank, micro-batches, pieces of kinds.
  std::map<std::tuple<ScheduleKind, int, int, int64_t, std::vector<int64_t>>, std::vector<Rate>> known_;
};

}  // namespace mw
