// What the pages of `report` have in common: how numbers of a run are chosen for them, and the page around its parts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/report/chart.h"
#include "formats/report/metrics_file.h"

namespace mw {

// The median; of an even number the mean of the two in the middle, so that rates and times of a report agree. Requires
// a value. base/median.h has the one of measurements.
double middle_of(std::vector<double> values);

// A run's curves, which share the axis of steps. Holds a reference to the history.
struct Page {
  explicit Page(const MetricsHistory& history);

  const MetricsHistory& history;
  double first = 0, last = 1;  // steps
  double now_from;             // the last quarter of the steps in the run's last layout: how it stands now

  ChartFrame frame(const std::string& title, const std::string& unit = "") const;
  ChartSeries series(const std::string& field, const std::string& name, int color, double factor = 1) const;
  bool has(const std::string& field) const { return !history.curve(field).values.empty(); }
  // The median of its values there; nothing where there are none.
  std::optional<double> now(const std::string& field) const;
  // The last value in the run's last layout.
  std::optional<double> latest(const std::string& field) const;
  // The field of the validation that came last: the one after the last step may be of a run that was gone on with.
  std::string last_validation() const;
};

// A running mean over about a twentieth of the curve, from both sides alike.
ChartSeries smoothed(ChartSeries series);

// A whole HTML page with the title, which is escaped, and the body, which is not.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace mw
