#include "formats/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace mw {
namespace {

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; --ink: #1f2328; --soft: #656d76; --grid: #e3e7ec; --page: #ffffff; --card: #f6f8fa;
  --c0: #0969da; --c1: #cf222e; --c2: #1a7f37; --c3: #9a6700; --c4: #8250df; --c5: #bf3989; --c6: #0a7ea4; --c7: #57606a;
  --c8: #bc4c00; --c9: #8c959f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --grid: #30363d; --page: #0d1117;
  --card: #161b22; --c0: #4493f8; --c1: #f85149; --c2: #3fb950; --c3: #d29922; --c4: #ab7df8; --c5: #db61a2; --c6: #39c5cf;
  --c7: #9198a1; --c8: #f0883e; --c9: #6e7681; } }
body { margin: 0 auto; padding: 24px; max-width: 1240px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 16px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 32px 0 4px; }
p { margin: 8px 0 12px; color: var(--soft); max-width: 80ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); gap: 10px; }
.tile { background: var(--card); border-radius: 8px; padding: 10px 14px; }
table { border-collapse: collapse; margin-top: 8px; } th, td { padding: 5px 18px 5px 0; text-align: left;
  vertical-align: baseline; }
.run { margin: 0 0 12px; } .run th { white-space: nowrap; } .run td { overflow-wrap: anywhere; white-space: pre-line; }
.run th, .run td { padding: 3px 18px 3px 0; border-top: 0; }
details { margin: 0 0 20px; } summary { color: var(--soft); cursor: pointer; }
pre { background: var(--card); border-radius: 8px; padding: 12px 14px; overflow-x: auto; font-size: 13px; }
th { color: var(--soft); font-weight: 400; } td { border-top: 1px solid var(--grid); }
.tile b { display: block; font-size: 19px; font-weight: 600; } .tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 22px 28px;
  margin-top: 18px; }
.maps { grid-template-columns: repeat(auto-fill, minmax(min(100%, 360px), 1fr)); }
svg { width: 100%; height: auto; display: block; } svg.scale { max-width: 340px; }
svg text { font-size: 11px; fill: var(--soft); } svg .title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .unit { font-weight: 400; fill: var(--soft); } svg .grid { stroke: var(--grid); }
svg .line, svg .faint { fill: none; stroke-width: 1.6; stroke-linejoin: round; } svg .faint { opacity: 0.3; }
svg image { image-rendering: pixelated; }
</style>)";

}  // namespace

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Page::Page(const MetricsHistory& h) : history(h), now_from(h.setup_from) {
  const std::vector<double>& steps = h.curve("step").values;
  if (steps.empty()) return;
  first = steps.front();
  last = steps.back();
  const auto setup = std::lower_bound(steps.begin(), steps.end(), h.setup_from);
  if (setup != steps.end()) now_from = *(setup + (steps.end() - setup) * 3 / 4);
}

ChartFrame Page::frame(const std::string& title, const std::string& unit) const {
  ChartFrame frame;
  frame.title = title;
  frame.unit = unit;
  frame.x_low = first;
  frame.x_high = last;
  return frame;
}

ChartSeries Page::series(const std::string& field, const std::string& name, int color, double factor) const {
  const Curve& curve = history.curve(field);
  ChartSeries out{name, curve.steps, curve.values, color, false, false};
  for (double& value : out.y) value *= factor;
  return out;
}

std::optional<double> Page::now(const std::string& field) const {
  const Curve& curve = history.curve(field);
  const auto begin = std::lower_bound(curve.steps.begin(), curve.steps.end(), now_from) - curve.steps.begin();
  if (begin == std::ssize(curve.values)) return std::nullopt;
  return middle_of({curve.values.begin() + begin, curve.values.end()});
}

std::optional<double> Page::latest(const std::string& field) const {
  const Curve& curve = history.curve(field);
  if (curve.values.empty() || curve.steps.back() < history.setup_from) return std::nullopt;
  return curve.values.back();
}

std::string Page::last_validation() const {
  const Curve &final = history.curve("final_val_loss"), &during = history.curve("val_loss");
  const bool ended = !final.steps.empty() && (during.steps.empty() || during.steps.back() <= final.steps.back());
  return ended ? "final_val_loss" : "val_loss";
}

ChartSeries smoothed(ChartSeries series) {
  const auto reach = static_cast<std::ptrdiff_t>(series.y.size() / 40);
  std::vector<double> sums(series.y.size() + 1);
  std::partial_sum(series.y.begin(), series.y.end(), sums.begin() + 1);
  for (std::ptrdiff_t i = 0; i < std::ssize(series.y); ++i) {
    const std::ptrdiff_t near = std::min({reach, i, std::ssize(series.y) - 1 - i});
    series.y[static_cast<size_t>(i)] = (sums[static_cast<size_t>(i + near + 1)] - sums[static_cast<size_t>(i - near)]) /
                                       static_cast<double>(2 * near + 1);
  }
  return series;
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{0}</title>\n{1}\n</head>\n<body>\n<h1>{0}</h1>\n{2}</body>\n</html>\n",
      escape_markup(title), kStyle, body);
}

}  // namespace mw
