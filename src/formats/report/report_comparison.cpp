#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "formats/report/report.h"
#include "formats/report/report_page.h"

namespace mw {
namespace {

std::string mark(size_t run) { return fmt::format("<b style=\"color: var(--c{})\">&#9632;</b> ", run); }

std::string row(const char* kind, const std::string& first, const std::vector<std::string>& cells) {
  std::string out = fmt::format("<tr><{0}>{1}</{0}>", kind, first);
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", kind, escape_markup(cell));
  return out + "</tr>\n";
}

double tokens_of(const MetricsHistory& history) {
  const std::vector<double>& tokens = history.curve("tokens").values;
  return std::accumulate(tokens.begin(), tokens.end(), 0.0);
}

std::string draw_numbers(std::span<const NamedHistory> runs, std::span<const Page> pages) {
  std::string out = "<table>\n" + row("th", "",
                                      {"steps", "tokens", "loss of the last steps", "last validation loss", "tokens/s",
                                       "ms per step", "memory of the largest rank", "imbalance"});
  for (size_t i = 0; i < runs.size(); ++i) {
    const Page& page = pages[i];
    const auto number = [](std::optional<double> value, int digits) {
      return value ? fmt::format("{:.{}f}", *value, digits) : std::string("-");
    };
    const Curve& validation = page.history.curve(page.last_validation());
    const ChartSeries loss = smoothed(page.series("loss", "", 0));
    const auto speed = page.now("tokens_per_s"), memory = page.latest("mem_peak_bytes");
    const auto last = [](const std::vector<double>& values) {
      return values.empty() ? std::nullopt : std::optional(values.back());
    };
    out += row("td", mark(i) + escape_markup(runs[i].name),
               {fmt::format("{:.0f} to {:.0f}", page.first, page.last), format_count(tokens_of(page.history)),
                number(last(loss.y), 4), number(last(validation.values), 4), speed ? format_count(*speed) : "-",
                number(page.now("step_ms"), 0), memory ? format_bytes(static_cast<int64_t>(*memory)) : "-",
                number(page.now("imbalance"), 2)});
  }
  return out + "</table>\n<p>Rates, times and imbalance: median over the last quarter of the steps.</p>\n";
}

// The keys of a run file with their sections, as in "train.lr", from the last start of the run.
std::map<std::string, std::string> keys_of(const MetricsHistory& history) {
  std::map<std::string, std::string> keys;
  if (history.runs.empty()) return keys;
  for (const auto& [field, text] : history.runs.back().fields) {
    if (field != "run_file") continue;
    std::istringstream lines(text);
    for (std::string line, section; std::getline(lines, line);) {
      const size_t equals = line.find(" = ");
      if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1) + ".";
      else if (equals != std::string::npos) keys[section + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return keys;
}

std::string draw_differences(std::span<const NamedHistory> runs) {
  std::vector<std::map<std::string, std::string>> keys;
  std::map<std::string, std::vector<std::string>> differing;
  for (const NamedHistory& run : runs) keys.push_back(keys_of(run.history));
  for (const auto& of : keys)
    for (const auto& [key, value] : of) {
      std::vector<std::string> values;
      for (const auto& other : keys) values.push_back(other.contains(key) ? other.at(key) : "-");
      if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end())
        differing[key] = std::move(values);
    }
  if (differing.empty()) return {};
  std::string out = "<h2>Keys of the run files that differ</h2>\n<table>\n<tr><th></th>";
  for (size_t i = 0; i < runs.size(); ++i) out += "<th>" + mark(i) + escape_markup(runs[i].name) + "</th>";
  out += "</tr>\n";
  for (const auto& [key, values] : differing) out += row("td", escape_markup(key), values);
  return out + "</table>\n";
}

// The steps of a series replaced by the tokens read up to there, in units of `unit`.
ChartSeries over_tokens(ChartSeries series, const MetricsHistory& history, double unit) {
  const Curve& tokens = history.curve("tokens");
  std::vector<double> sums(tokens.values.size());
  std::partial_sum(tokens.values.begin(), tokens.values.end(), sums.begin());
  for (double& x : series.x) {
    const auto after = std::upper_bound(tokens.steps.begin(), tokens.steps.end(), x) - tokens.steps.begin();
    x = after == 0 ? 0 : sums[static_cast<size_t>(after - 1)] / unit;
  }
  return series;
}

// One chart of one curve of each run that has it.
struct ComparedCurve {
  const char *field, *title, *unit;
  bool smooth = false, from_zero = false;
};

std::string draw_compared(std::span<const Page> pages, const ComparedCurve& curve, double tokens_unit = 0) {
  ChartFrame frame;
  frame.title = curve.title;
  frame.unit = curve.unit;
  frame.from_zero = curve.from_zero;
  frame.x_low = std::numeric_limits<double>::max();
  frame.x_high = std::numeric_limits<double>::lowest();
  std::vector<ChartSeries> series;
  for (size_t i = 0; i < pages.size(); ++i) {
    ChartSeries one = pages[i].series(curve.field, "", static_cast<int>(i));
    if (one.x.empty()) continue;
    if (curve.smooth) one = smoothed(std::move(one));
    if (tokens_unit > 0) one = over_tokens(std::move(one), pages[i].history, tokens_unit);
    frame.x_low = std::min(frame.x_low, one.x.front());
    frame.x_high = std::max(frame.x_high, one.x.back());
    series.push_back(std::move(one));
  }
  return series.empty() ? std::string() : draw_lines(frame, series);
}

// The axis of tokens has whole numbers, for which the largest run has at least ten units.
std::string draw_loss_over_tokens(std::span<const Page> pages) {
  double most = 0, unit = 1;
  for (const Page& page : pages) most = std::max(most, tokens_of(page.history));
  if (most == 0) return {};
  const char* const names[] = {"tokens", "thousands of tokens", "millions of tokens", "billions of tokens"};
  size_t name = 0;
  for (; name + 1 < std::size(names) && most >= 1e4 * unit; ++name) unit *= 1e3;
  const std::string title = fmt::format("Loss over {}", names[name]);
  return draw_compared(pages, {"loss", title.c_str(), "nats, running mean", true}, unit);
}

std::string draw_curves(std::span<const Page> pages) {
  const ComparedCurve loss{"loss", "Loss", "nats, running mean over steps", true};
  const ComparedCurve others[] = {
      {"val_loss", "Validation loss", "nats, over steps"},
      {"grad_norm", "Gradient norm", "before clipping, running mean", true},
      {"lr", "Learning rate", "", false, true},
      {"tokens_per_s", "Speed", "tokens/s, running mean", true, true},
      {"imbalance", "Imbalance", "rows of the fullest expert over the mean, worst layer, running mean", true}};
  std::string out = "<div class=\"charts\">\n" + draw_compared(pages, loss) + draw_loss_over_tokens(pages);
  for (const ComparedCurve& curve : others) out += draw_compared(pages, curve);
  return out + "</div>\n";
}

}  // namespace

std::string draw_comparison(std::span<const NamedHistory> runs) {
  std::vector<Page> pages;
  for (const NamedHistory& run : runs) pages.emplace_back(run.history);
  return html_page(fmt::format("{} runs", runs.size()),
                   draw_numbers(runs, pages) + draw_differences(runs) + draw_curves(pages));
}

}  // namespace mw
