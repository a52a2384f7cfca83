// What the parts of a report share: the metrics, the axis of steps, and how the run stands now.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "formats/report/chart.h"
#include "formats/report/metrics_file.h"

namespace mw {

// Of several values the upper one of the middle. Requires a value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The page's charts share the axis of steps.
struct Page {
  explicit Page(const MetricsHistory& h) : history(h), now_from(h.setup_from) {
    const std::vector<double>& steps = h.curve("step").values;
    if (steps.empty()) return;
    first = steps.front();
    last = steps.back();
    const auto setup = std::lower_bound(steps.begin(), steps.end(), h.setup_from);
    if (setup != steps.end()) now_from = *(setup + (steps.end() - setup) * 3 / 4);
  }

  const MetricsHistory& history;
  double first = 0, last = 1;
  double now_from;  // the last quarter of the steps in the run's last layout: how it stands now

  ChartFrame frame(const std::string& title, const std::string& unit = "") const {
    ChartFrame frame;
    frame.title = title;
    frame.unit = unit;
    frame.x_low = first;
    frame.x_high = last;
    return frame;
  }
  ChartSeries series(const std::string& field, const std::string& name, int color, double factor = 1) const {
    const Curve& curve = history.curve(field);
    ChartSeries out{name, curve.steps, curve.values, color, false, false};
    for (double& value : out.y) value *= factor;
    return out;
  }
  bool has(const std::string& field) const { return !history.curve(field).values.empty(); }
  // The median of its values there; nothing where there are none.
  std::optional<double> now(const std::string& field) const {
    const Curve& curve = history.curve(field);
    const auto begin = std::lower_bound(curve.steps.begin(), curve.steps.end(), now_from) - curve.steps.begin();
    if (begin == std::ssize(curve.values)) return std::nullopt;
    return median({curve.values.begin() + begin, curve.values.end()});
  }
  // The last value in the run's last layout.
  std::optional<double> latest(const std::string& field) const {
    const Curve& curve = history.curve(field);
    if (curve.values.empty() || curve.steps.back() < history.setup_from) return std::nullopt;
    return curve.values.back();
  }
};

}  // namespace mw
