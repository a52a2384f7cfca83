#include "formats/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "formats/report/png.h"

namespace mw {
namespace {

constexpr double kWidth = 560, kHeight = 230, kLeft = 62, kRight = 14, kTop = 40, kBottom = 26;
constexpr int kMostPoints = 480;
constexpr double kLargestDrawn = 1e30;  // what an axis shows; 1 / kLargestDrawn is the smallest that differs from zero

// One axis: data to pixels.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  bool logarithmic = false;

  double operator()(double value) const {
    const double a = logarithmic ? std::log(low) : low, b = logarithmic ? std::log(high) : high;
    const double v = logarithmic ? std::log(value) : value;
    return from + (to - from) * (v - a) / (b - a);
  }
};

// A short number: 1.5k, 0.003.
std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", std::abs(value) < 1e-300 ? 0.0 : value);
}

// Round numbers within [low, high], about `count` of them.
std::vector<double> ticks_of(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= rough) step = factor * power;
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && ticks.size() < 50; ++k)
    ticks.push_back(k * step);
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const int decades = static_cast<int>(std::ceil(std::log10(high / low)));
  const int every = std::max(1, decades / 5);
  std::vector<double> ticks;
  for (int e = static_cast<int>(std::floor(std::log10(low))); e <= std::ceil(std::log10(high)); ++e)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, e);
      if ((factor == 1 ? e % every == 0 : decades <= 2) && tick >= low && tick <= high) ticks.push_back(tick);
    }
  return ticks;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* style = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, style,
                     escape_markup(text));
}

std::string open_svg(const ChartFrame& frame, double height) {
  std::string svg = fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height,
                                escape_markup(frame.title));
  const std::string unit =
      frame.unit.empty() ? "" : fmt::format("<tspan class=\"unit\">  {}</tspan>", escape_markup(frame.unit));
  return svg + fmt::format("<text x=\"0\" y=\"14\" class=\"title\">{}{}</text>\n", escape_markup(frame.title), unit);
}

Scale x_scale(const ChartFrame& frame) {
  const double high = frame.x_high > frame.x_low ? frame.x_high : frame.x_low + 1;
  return {frame.x_low, high, kLeft, kWidth - kRight};
}

std::string draw_x_axis(const Scale& x, double bottom) {
  std::string svg;
  for (const double tick : ticks_of(x.low, x.high, 6))
    if (tick == std::floor(tick)) svg += text_at(x(tick), bottom + 17, "middle", short_number(tick));
  return svg;
}

std::string draw_y_axis(const Scale& y) {
  std::string svg;
  for (const double tick : y.logarithmic ? log_ticks(y.low, y.high) : ticks_of(y.low, y.high, 4)) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft,
                       kWidth - kRight, y(tick));
    svg += text_at(kLeft - 8, y(tick) + 4, "end", short_number(tick));
  }
  return svg;
}

// Names from the right end of the line below the title.
std::string draw_legend(const std::vector<ChartSeries>& series) {
  std::string svg;
  double x = kLeft;
  for (const ChartSeries& s : series) {
    if (s.name.empty()) continue;
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"24\" width=\"10\" height=\"4\" rx=\"2\" fill=\"var(--c{})\"/>\n", x,
                       s.color);
    svg += text_at(x + 14, 30, "start", s.name);
    x += 26 + 6.1 * static_cast<double>(s.name.size());
  }
  return svg;
}

// Means of intervals of x, so that no line has more points than a screen shows.
ChartSeries thin_out(const ChartSeries& series, const ChartFrame& frame) {
  if (series.x.size() <= static_cast<size_t>(kMostPoints)) return series;
  std::vector<double> x_sums(kMostPoints), y_sums(kMostPoints), counts(kMostPoints);
  for (size_t i = 0; i < series.x.size(); ++i) {
    const double share = (series.x[i] - frame.x_low) / std::max(frame.x_high - frame.x_low, 1e-9);
    if (std::isnan(share)) continue;  // where the range of x is beyond what doubles hold
    const auto bin = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * (kMostPoints - 1));
    x_sums[bin] += series.x[i];
    y_sums[bin] += series.y[i];
    counts[bin] += 1;
  }
  ChartSeries out = series;
  out.x.clear();
  out.y.clear();
  for (size_t bin = 0; bin < counts.size(); ++bin) {
    if (counts[bin] == 0) continue;
    out.x.push_back(x_sums[bin] / counts[bin]);
    out.y.push_back(y_sums[bin] / counts[bin]);
  }
  return out;
}

Scale y_scale(const ChartFrame& frame, const std::vector<ChartSeries>& series) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const ChartSeries& s : series)
    for (const double value : s.y) {
      if (frame.logarithmic && value <= 0) continue;
      const double drawn = std::clamp(value, frame.logarithmic ? 1 / kLargestDrawn : -kLargestDrawn, kLargestDrawn);
      low = std::min(low, drawn);
      high = std::max(high, drawn);
    }
  if (!(low <= high)) low = high = frame.logarithmic ? 1 : 0;
  if (frame.logarithmic) return {low * 0.9, high * 1.1, kHeight - kBottom, kTop, true};
  if (frame.from_zero) low = std::min(low, 0.0);
  const bool flat = high - low <= std::max(1e-9 * std::max(std::abs(low), std::abs(high)), 1 / kLargestDrawn);
  const double margin = !flat ? 0.05 * (high - low) : std::max(0.05 * std::abs(high), 0.5);
  return {frame.from_zero && low == 0 ? 0 : low - margin, high + margin, kHeight - kBottom, kTop, false};
}

std::string draw_series(const ChartSeries& series, const Scale& x, const Scale& y) {
  std::string path, dots;
  const bool alone = series.x.size() == 1;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (y.logarithmic && series.y[i] <= 0) continue;
    const double px = x(series.x[i]), py = y(series.y[i]);
    if (series.points || alone)
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"var(--c{})\"/>\n", px, py, series.color);
    else path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
  }
  if (path.empty()) return dots;
  return fmt::format("<path class=\"{}\" stroke=\"var(--c{})\" d=\"{}\"/>\n", series.faint ? "faint" : "line",
                     series.color, path);
}

// Blue, white, red: 255 colors, and one for nothing.
constexpr int kLevels = 255;
std::vector<Color> heat_palette() {
  constexpr std::array<double, 3> kBlue = {33, 102, 172}, kWhite = {247, 247, 247}, kRed = {178, 24, 43};
  std::vector<Color> palette;
  for (int i = 0; i < kLevels; ++i) {
    const double at = 2.0 * i / (kLevels - 1) - 1;
    const std::array<double, 3>& end = at < 0 ? kBlue : kRed;
    Color color;
    for (size_t k = 0; k < 3; ++k)
      color[k] = static_cast<uint8_t>(std::lround(kWhite[k] + (end[k] - kWhite[k]) * std::abs(at)));
    palette.push_back(color);
  }
  palette.push_back({200, 200, 200});
  return palette;
}

uint8_t heat_level(const HeatMap& map, double value) {
  if (std::isnan(value)) return kLevels;
  const double at = value < map.middle ? 0.5 * (value - map.low) / (map.middle - map.low)
                                       : 0.5 + 0.5 * (value - map.middle) / (map.high - map.middle);
  return static_cast<uint8_t>(std::lround(std::clamp(at, 0.0, 1.0) * (kLevels - 1)));
}

std::string image(double x, double y, double width, double height, const std::string& png) {
  return fmt::format(
      "<image x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" preserveAspectRatio=\"none\" "
      "href=\"data:image/png;base64,{}\"/>\n",
      x, y, width, height, encode_base64(png));
}

}  // namespace

std::string draw_lines(const ChartFrame& frame, const std::vector<ChartSeries>& series) {
  std::vector<ChartSeries> thin;
  for (const ChartSeries& s : series) thin.push_back(thin_out(s, frame));
  const Scale x = x_scale(frame), y = y_scale(frame, thin);
  std::string svg = open_svg(frame, kHeight) + draw_legend(series) + draw_y_axis(y) + draw_x_axis(x, kHeight - kBottom);
  for (const ChartSeries& s : thin) svg += draw_series(s, x, y);
  return svg + "</svg>\n";
}

std::string draw_stack(const ChartFrame& frame, const std::vector<ChartSeries>& series) {
  const Scale x = x_scale(frame);
  ChartSeries top;  // the sum of all, for the axis
  std::vector<ChartSeries> thin;
  for (const ChartSeries& s : series) {
    thin.push_back(thin_out(s, frame));
    top.y.resize(thin.back().y.size());
    for (size_t i = 0; i < top.y.size(); ++i) top.y[i] += thin.back().y[i];
  }
  ChartFrame from_zero = frame;
  from_zero.from_zero = true;
  const Scale y = y_scale(from_zero, {top});
  std::string svg = open_svg(frame, kHeight) + draw_legend(series), areas;
  std::vector<double> below(top.y.size());
  for (const ChartSeries& s : thin) {
    std::string forth, back;
    for (size_t i = 0; i < s.x.size(); ++i) {
      back = fmt::format("L{:.1f} {:.1f}", x(s.x[i]), y(below[i])) + back;
      below[i] += s.y[i];
      forth += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x(s.x[i]), y(below[i]));
    }
    areas += fmt::format("<path fill=\"var(--c{})\" fill-opacity=\"0.85\" d=\"{}{}Z\"/>\n", s.color, forth, back);
  }
  return svg + areas + draw_y_axis(y) + draw_x_axis(x, kHeight - kBottom) + "</svg>\n";
}

std::string draw_heat_map(const ChartFrame& frame, const HeatMap& map) {
  const double row_height = std::clamp(150.0 / map.rows, 2.0, 18.0), top = 24;
  const double height = row_height * map.rows, bottom = top + height;
  std::vector<uint8_t> pixels;
  for (const double value : map.values) pixels.push_back(heat_level(map, value));
  std::string svg = open_svg(frame, bottom + kBottom);
  svg += image(kLeft, top, kWidth - kLeft - kRight, height, encode_png(map.columns, map.rows, pixels, heat_palette()));
  const auto label = [&](int row) {
    return map.row_labels.empty() ? fmt::format("{}", row) : map.row_labels[static_cast<size_t>(row)];
  };
  // Rows that have the room get a label: all, or some round ones.
  const int every = std::max(1, static_cast<int>(std::ceil(13 / row_height)));
  for (int row = 0; row < map.rows; row += every)
    svg += text_at(kLeft - 8, top + (row + 0.5) * row_height + 4, "end",
                   row == 0 ? map.row_name + " " + label(row) : label(row));
  return svg + draw_x_axis(x_scale(frame), bottom) + "</svg>\n";
}

std::string draw_heat_scale(const HeatMap& map, const std::string& unit) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < kLevels; ++i) pixels.push_back(static_cast<uint8_t>(i));
  std::string svg = "<svg class=\"scale\" viewBox=\"0 0 360 34\">\n";
  svg += image(20, 2, 220, 10, encode_png(kLevels, 1, pixels, heat_palette()));
  svg += text_at(20, 28, "middle", short_number(map.low)) + text_at(130, 28, "middle", short_number(map.middle)) +
         text_at(240, 28, "middle", "≥ " + short_number(map.high)) + text_at(262, 12, "start", unit);
  return svg + "</svg>\n";
}

std::string escape_markup(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

}  // namespace mw
