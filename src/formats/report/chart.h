// Charts as SVG: pure functions from numbers to text. Colors are CSS variables (--ink, --soft, --grid, --c0 to --c9)
// that the enclosing page must define.
#pragma once

#include <string>
#include <vector>

namespace mw {

struct ChartSeries {
  std::string name;  // empty: not in the legend
  std::vector<double> x, y;
  int color = 0;        // 0 to 9
  bool faint = false;   // behind the others
  bool points = false;  // dots instead of a line
};

struct ChartFrame {
  std::string title;
  std::string unit;  // printed after the title
  double x_low = 0, x_high = 1;
  bool from_zero = false;    // the value axis begins at zero
  bool logarithmic = false;  // values must be positive; others are left out
};

// Line chart. Longer series than a few hundred points are averaged in intervals of equal width.
std::string draw_lines(const ChartFrame& frame, const std::vector<ChartSeries>& series);

// Stacked areas; all series must have the same x.
std::string draw_stack(const ChartFrame& frame, const std::vector<ChartSeries>& series);

struct HeatMap {
  int rows = 0, columns = 0;
  std::vector<double> values;            // [row][column]; NaN: no value
  double low = 0, middle = 1, high = 2;  // values of blue, white and red; others are clamped
  std::string row_name;                  // "layer"
  std::vector<std::string> row_labels;   // one per row, or none
};
std::string draw_heat_map(const ChartFrame& frame, const HeatMap& map);

// The color scale of a heat map, labelled with low, middle and high.
std::string draw_heat_scale(const HeatMap& map, const std::string& unit);

// Escapes text for HTML and SVG.
std::string escape_markup(const std::string& text);

}  // namespace mw
