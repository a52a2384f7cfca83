// Charts as SVG: pure functions from numbers to text. Colors are CSS variables (--ink, --soft, --grid, --c0 to --c9)
// that the page around them sets.
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
  std::string unit;  // behind the title
  double x_low = 0, x_high = 1;
  bool from_zero = false;    // the axis begins at zero
  bool logarithmic = false;  // values must be positive; others are left out
};

// Lines of up to some hundred points each: longer ones are averaged in intervals of equal width.
std::string draw_lines(const ChartFrame& frame, const std::vector<ChartSeries>& series);

// Areas on top of each other; all series have the same x.
std::string draw_stack(const ChartFrame& frame, const std::vector<ChartSeries>& series);

struct HeatMap {
  int rows = 0, columns = 0;
  std::vector<double> values;            // [row][column]; NaN: nothing there
  double low = 0, middle = 1, high = 2;  // blue, white and red; beyond the ends nothing changes
  std::string row_name;                  // "layer"
  std::vector<std::string> row_labels;   // one per row, or none
};
std::string draw_heat_map(const ChartFrame& frame, const HeatMap& map);

// The color scale of a heat map with its three numbers.
std::string draw_heat_scale(const HeatMap& map, const std::string& unit);

// Text as HTML and SVG take it.
std::string escape_markup(const std::string& text);

}  // namespace mw
