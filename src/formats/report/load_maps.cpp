#include "formats/report/load_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace mw {
namespace {

constexpr size_t kMostExpertMaps = 96, kMostExperts = 1 << 16;

// A row per layer: rows of the fullest expert over the mean.
HeatMap imbalance_map(const std::vector<LoadSample>& loads, size_t layers) {
  HeatMap map;
  map.rows = static_cast<int>(layers);
  map.columns = static_cast<int>(loads.size());
  map.values.assign(layers * loads.size(), std::numeric_limits<double>::quiet_NaN());
  map.low = 1;
  map.row_name = "layer";
  for (size_t column = 0; column < loads.size(); ++column)
    for (size_t layer = 0; layer < std::min(layers, loads[column].load.size()); ++layer) {
      const std::vector<double>& load = loads[column].load[layer];
      const double sum = std::accumulate(load.begin(), load.end(), 0.0);
      if (sum > 0)
        map.values[layer * loads.size() + column] =
            *std::max_element(load.begin(), load.end()) * static_cast<double>(load.size()) / sum;
    }
  for (const double value : map.values)
    if (value > map.high) map.high = std::ceil(value);
  map.middle = 0.5 * (map.low + map.high);
  return map;
}

// A row per expert of one layer: its rows over the mean.
HeatMap expert_map(const std::vector<LoadSample>& loads, size_t layer) {
  size_t experts = 1;
  for (const LoadSample& sample : loads)
    if (layer < sample.load.size()) experts = std::max(experts, std::min(sample.load[layer].size(), kMostExperts));
  HeatMap map;
  map.rows = static_cast<int>(experts);
  map.columns = static_cast<int>(loads.size());
  map.values.assign(experts * loads.size(), std::numeric_limits<double>::quiet_NaN());
  map.row_name = "expert";
  for (size_t column = 0; column < loads.size(); ++column) {
    if (layer >= loads[column].load.size()) continue;
    const std::vector<double>& load = loads[column].load[layer];
    const double sum = std::accumulate(load.begin(), load.end(), 0.0);
    for (size_t expert = 0; expert < std::min(load.size(), experts) && sum > 0; ++expert)
      map.values[expert * loads.size() + column] = load[expert] * static_cast<double>(load.size()) / sum;
  }
  return map;
}

}  // namespace

std::string draw_loads(const Page& page) {
  const std::vector<LoadSample>& loads = page.history.loads;
  size_t layers = 0;
  for (const LoadSample& sample : loads) layers = std::max(layers, sample.load.size());
  if (layers == 0) return {};
  layers = std::min(layers, kMostExperts);
  std::string out = fmt::format(
      "<h2>Load of the experts</h2>\n<p>At {} of the steps. 1 is a fair share; grey: no data. Layers are counted among "
      "the MoE layers, from 0.</p>\n<div class=\"charts\">\n",
      loads.size());
  const auto frame = [&](const std::string& title) {
    ChartFrame f = page.frame(title);
    f.x_low = loads.front().step;
    f.x_high = loads.back().step;
    return f;
  };
  const HeatMap worst = imbalance_map(loads, layers);
  out += "<div>" + draw_heat_map(frame("Fullest expert of each layer over the mean"), worst) +
         draw_heat_scale(worst, "of the mean") + "</div>\n</div>\n<div class=\"charts maps\">\n";
  for (size_t layer = 0; layer < std::min(layers, kMostExpertMaps); ++layer)
    out += draw_heat_map(frame(fmt::format("MoE layer {}", layer)), expert_map(loads, layer));
  out += "</div>\n" + draw_heat_scale(expert_map(loads, 0), "of the mean");
  if (layers > kMostExpertMaps) out += fmt::format("<p>The first {} of {} layers.</p>\n", kMostExpertMaps, layers);
  return out;
}

}  // namespace mw
