#include "formats/report/load_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text.h"

namespace mw {
namespace {

constexpr size_t kMostExpertMaps = 96, kMostExperts = 1 << 16;
constexpr double kStepsAround = 20;  // a move

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

// A row per layer and a column per rank: its rows over the mean, of all samples from step `begin` to `end`.
HeatMap rank_map(const std::vector<LoadSample>& loads, double begin, double end) {
  std::vector<std::vector<double>> sums;
  for (const LoadSample& sample : loads) {
    if (sample.step < begin || sample.step > end) continue;
    sums.resize(std::max(sums.size(), std::min(sample.ranks.size(), kMostExperts)));
    for (size_t layer = 0; layer < std::min(sums.size(), sample.ranks.size()); ++layer) {
      const std::vector<double>& rows = sample.ranks[layer];
      sums[layer].resize(std::max(sums[layer].size(), std::min(rows.size(), kMostExperts)));
      for (size_t rank = 0; rank < std::min(sums[layer].size(), rows.size()); ++rank) sums[layer][rank] += rows[rank];
    }
  }
  HeatMap map;
  map.row_name = "layer";
  map.rows = static_cast<int>(sums.size());
  size_t ranks = 0;
  for (const std::vector<double>& rows : sums) ranks = std::max(ranks, rows.size());
  map.columns = static_cast<int>(ranks);
  map.values.assign(sums.size() * ranks, std::numeric_limits<double>::quiet_NaN());
  for (size_t layer = 0; layer < sums.size(); ++layer) {
    const double sum = std::accumulate(sums[layer].begin(), sums[layer].end(), 0.0);
    for (size_t rank = 0; rank < sums[layer].size() && sum > 0; ++rank)
      map.values[layer * ranks + rank] = sums[layer][rank] * static_cast<double>(sums[layer].size()) / sum;
  }
  return map;
}

// Milliseconds of a step that the moves saved, as they were planned and as the steps around them took: of those moves
// for which both are known.
struct Gain {
  double predicted = 0, measured = 0;
  int64_t moves = 0;
};
Gain gain_of_moves(const Page& page) {
  const std::vector<double>& moves = page.history.curve("moved_experts").steps;
  const Curve &predicted = page.history.curve("move_gain_predicted_ms"), &times = page.history.curve("step_ms");
  // The steps between two moves, without those that wait for a move.
  const auto between = [&](double before, double after) {
    std::vector<double> found;
    auto step = std::upper_bound(times.steps.begin(), times.steps.end(), before);
    for (; step != times.steps.end() && *step < after; ++step)
      found.push_back(times.values[static_cast<size_t>(step - times.steps.begin())]);
    return found;
  };
  Gain gain;
  for (size_t i = 0; i < predicted.steps.size(); ++i) {
    const double step = predicted.steps[i];
    const auto here = std::lower_bound(moves.begin(), moves.end(), step);
    const double last = here == moves.begin() ? page.first - 1 : *(here - 1);
    const double next = here == moves.end() || here + 1 == moves.end() ? page.last + 1 : *(here + 1);
    const std::vector<double> slow = between(std::max(last, step - kStepsAround - 1), step),
                              fast = between(step, std::min(next, step + kStepsAround + 1));
    if (slow.empty() || fast.empty()) continue;
    gain.predicted += predicted.values[i];
    gain.measured += middle_of(slow) - middle_of(fast);
    ++gain.moves;
  }
  return gain;
}

}  // namespace

std::string draw_moves(const Page& page) {
  const Curve &moved = page.history.curve("moved_experts"), &times = page.history.curve("step_ms");
  if (moved.steps.empty()) return {};
  const auto total = [&](const char* field) {
    const std::vector<double>& values = page.history.curve(field).values;
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  const double move_ms = total("move_experts_ms"),
               all_ms = std::accumulate(times.values.begin(), times.values.end(), 0.0);
  std::string out = fmt::format(
      "<h2>Moves of experts</h2>\n<p>{:.0f} experts moved, after {} of the steps: {} in {:.1f} ms, {:.2f} % of the "
      "time of all steps.",
      total("moved_experts"), moved.steps.size(), format_bytes(static_cast<int64_t>(total("moved_expert_bytes"))),
      move_ms, all_ms > 0 ? 100 * move_ms / all_ms : 0);
  if (const Gain gain = gain_of_moves(page); gain.moves > 0)
    out +=
        fmt::format(" Together they should save {:.2f} ms of a step; measured from the steps around them: {:.2f} ms.",
                    gain.predicted, gain.measured);
  out += "</p>\n";
  HeatMap before = rank_map(page.history.loads, page.first, moved.steps.front()),
          after = rank_map(page.history.loads, page.now_from, page.last);
  if (before.columns == 0 || after.columns == 0) return out;
  for (const HeatMap* map : {&before, &after})
    for (const double value : map->values)
      if (value > before.high) before.high = std::ceil(value);
  after.high = before.high;
  out += "<div class=\"charts maps\">\n";
  for (const auto& [map, title] :
       {std::pair(&before, fmt::format("Load of the ranks up to step {:.0f}", moved.steps.front())),
        std::pair(&after, fmt::format("Load of the ranks from step {:.0f} on", page.now_from))}) {
    ChartFrame frame = page.frame(title, "by expert-parallel rank");
    frame.x_low = -0.5;
    frame.x_high = map->columns - 0.5;
    out += draw_heat_map(frame, *map);
  }
  return out + "</div>\n" + draw_heat_scale(before, "of the mean");
}

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
