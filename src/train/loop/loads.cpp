#include "train/loop/loads.h"

namespace mw {

MeasuredLoads loads_by_place(const Engine& engine, const StepStats& stats) {
  MeasuredLoads loads;
  for (size_t i = 0; i < stats.load.size(); ++i) {
    const auto layer = static_cast<size_t>(engine.model->moe_index()[i]);
    const std::vector<int32_t> position = engine.plan.placements->layers[layer].position_of_expert();
    std::vector<double>& rows = loads.emplace_back(stats.load[i].size());
    for (size_t e = 0; e < rows.size(); ++e) rows[static_cast<size_t>(position[e])] = stats.load[i][e];
  }
  return loads;
}

}  // namespace mw
