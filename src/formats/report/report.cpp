#include "formats/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "base/text.h"
#include "formats/report/load_maps.h"
#include "formats/report/report_page.h"

namespace mw {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr size_t kMostParts = 6;

std::string tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_markup(value), escape_markup(what));
}

std::string run_row(const std::string& what, const std::string& text) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escape_markup(what), escape_markup(text));
}

std::string field_of(const RunDescription& run, const std::string& name) {
  for (const auto& [key, text] : run.fields)
    if (key == name) return text;
  return {};
}

// Which run it is, as its last start says, and the starts before. Nothing of files that do not say it.
std::string draw_run(const std::vector<RunDescription>& runs) {
  if (runs.empty()) return {};
  std::string rows, run_file;
  for (const auto& [key, text] : runs.back().fields) {
    std::string label = key;
    std::replace(label.begin(), label.end(), '_', ' ');
    if (key == "run_file") run_file = text;
    else rows += run_row(label, text);
  }
  std::string before;
  for (const RunDescription& run : std::span(runs).first(runs.size() - 1))
    before += fmt::format("{}step {:.0f}: {}", before.empty() ? "" : "; ", run.step, field_of(run, "started"));
  if (!before.empty()) rows += run_row("started before", before);
  std::string out = "<table class=\"run\">\n" + rows + "</table>\n";
  if (!run_file.empty())
    out += fmt::format("<details><summary>run file, every key</summary><pre>{}</pre></details>\n",
                       escape_markup(run_file));
  return out;
}

double sum_of(const Curve& curve) { return std::accumulate(curve.values.begin(), curve.values.end(), 0.0); }

std::string draw_tiles(const Page& page) {
  const MetricsHistory& h = page.history;
  std::string out = "<div class=\"tiles\">\n" + tile(fmt::format("{:.0f} to {:.0f}", page.first, page.last), "steps");
  if (page.has("tokens")) out += tile(format_count(sum_of(h.curve("tokens"))), "tokens");
  if (page.has("loss"))
    out += tile(fmt::format("{:.4f}", h.curve("loss").values.back()), "loss of the last step, nats");
  const bool has_bits = page.has("bits_per_byte");
  if (has_bits)
    out += tile(fmt::format("{:.3f}", h.curve("bits_per_byte").values.back()), "bits per byte of the last step");
  if (const std::string field = page.last_validation(); page.has(field)) {
    const double loss = h.curve(field).values.back();
    out += tile(fmt::format("{:.4f}", loss), "last validation loss, nats");
    if (has_bits) out += tile(fmt::format("{:.3f}", loss / std::numbers::ln2), "bits per byte, last validation");
  }
  if (const auto speed = page.now("tokens_per_s")) out += tile(format_count(*speed), "tokens/s");
  if (const auto time = page.now("step_ms")) out += tile(fmt::format("{:.0f} ms", *time), "per step");
  if (const auto rate = page.now("tflops_per_rank"))
    out += tile(fmt::format("{:.3g}", *rate < 1 ? *rate * 1e3 : *rate),
                *rate < 1 ? "GFLOP/s per rank" : "TFLOP/s per rank");
  if (const auto bytes = page.latest("mem_peak_bytes"))
    out += tile(format_bytes(static_cast<int64_t>(*bytes)), "memory of the largest rank");
  if (const auto ratio = page.now("imbalance"))
    out += tile(fmt::format("{:.2f}", *ratio), "fullest expert over the mean");
  if (page.has("dropped_rows")) out += tile(format_count(sum_of(h.curve("dropped_rows"))), "rows dropped");
  const std::string since =
      h.setup_from > page.first
          ? fmt::format(" from {:.0f} on, where the number of ranks, the layout or the dtype changed", h.setup_from)
          : "";
  return out + fmt::format(
                   "</div>\n<p>Rates, times and imbalance: median over the last quarter of the steps{}. All "
                   "curves run over steps.</p>\n",
                   since);
}

std::string table_row(const std::string& what, const std::string& predicted, const std::string& measured,
                      std::optional<double> percent = {}) {
  return fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", what, predicted, measured,
                     percent ? fmt::format("{:+.1f} %", *percent) : "");
}

// Rank 0's time as a prediction divides it. What has no kind of its own, waiting for other stages too, is the rest.
std::string describe_work(const Page& page) {
  double others = 0, optimizer = 0, compute = 0, rest = 0;
  for (const auto& [field, curve] : page.history.curves) {
    if (!field.starts_with("work_ms.")) continue;
    const std::string kind = field.substr(field.find('.') + 1);
    (kind == "exchange" || kind == "reduce"                      ? others
     : kind == "optimizer"                                       ? optimizer
     : kind == "other" || kind == "data" || kind == "checkpoint" ? rest
                                                                 : compute) += page.now(field).value_or(0);
  }
  return fmt::format("compute {:.1f}, waiting for others {:.1f}, optimizer {:.1f}, the rest {:.1f} (rank 0)", compute,
                     others, optimizer, rest);
}

// What was predicted beside what was measured; nothing where nothing was.
std::string draw_predictions(const Page& page) {
  std::string rows;
  const auto bytes = [](double value) { return format_bytes(static_cast<int64_t>(value)); };
  const auto above = [](double measured, double predicted) { return 100 * (measured / std::max(predicted, 1e-9) - 1); };
  const std::optional<double> peak = page.latest("mem_peak_bytes"), tensors = page.latest("mem_predicted_bytes");
  if (peak && tensors) {
    const double predicted = *tensors + page.latest("mem_library_bytes").value_or(0);
    rows += table_row("memory of the largest rank", bytes(predicted), bytes(*peak), above(*peak, predicted));
  }
  const std::optional<double> time = page.now("step_ms"), foreseen = page.now("predicted_step_ms");
  if (time && foreseen) {
    const auto part = [&](const char* name) { return page.now(fmt::format("predicted_ms.{}", name)).value_or(0); };
    rows += table_row("time of a step", fmt::format("{:.1f} ms", *foreseen), fmt::format("{:.1f} ms", *time),
                      above(*time, *foreseen));
    rows += table_row("its parts",
                      fmt::format("compute {:.1f}, waiting for others {:.1f}, optimizer {:.1f}", part("compute"),
                                  part("exchange") + part("bubble"), part("optimizer")),
                      page.now("work_ms.matmul") ? describe_work(page) : "");
  }
  for (const auto& [name, what] : {std::pair("exchanged", "sent for routed experts to other ranks in a step"),
                                   std::pair("exchanged_far", "sent for routed experts to other nodes in a step")}) {
    const std::optional<double> sent = page.now(fmt::format("{}_bytes", name)),
                                even = page.now(fmt::format("{}_predicted_bytes", name));
    if (sent && even) rows += table_row(what, bytes(*even), bytes(*sent), above(*sent, *even));
  }
  if (rows.empty()) return {};
  return "<h2>Predicted and measured</h2>\n<table><tr><th></th><th>predicted</th><th>measured</th><th></th></tr>\n" +
         rows + "</table>\n";
}

std::string draw_loss(const Page& page) {
  std::vector<ChartSeries> series = {page.series("loss", "", 0)};
  series[0].faint = series[0].y.size() > 20;
  if (series[0].faint) series.push_back(smoothed(page.series("loss", "running mean", 0)));
  for (const char* field : {"val_loss", "final_val_loss"}) {
    series.push_back(page.series(field, "", 1));
    series.back().points = true;
  }
  const bool validated = page.has("val_loss") || page.has("final_val_loss");
  if (validated) series[series.size() - 2].name = "validation";
  return draw_lines(page.frame("Loss", page.has("bits_per_byte") ? "nats per byte" : "nats per token"), series);
}

std::string draw_memory(const Page& page) {
  const bool small = page.history.curve("mem_peak_bytes").values.back() < kGiB;
  const double factor = (small ? 1024 : 1) / kGiB;
  std::vector<ChartSeries> series = {page.series("mem_peak_bytes", "measured peak", 0, factor),
                                     page.series("mem_predicted_bytes", "predicted tensors", 1, factor)};
  if (page.has("mem_library_bytes")) series.push_back(page.series("mem_library_bytes", "libraries", 7, factor));
  ChartFrame frame = page.frame("Memory of the largest rank", small ? "MiB" : "GiB");
  frame.from_zero = true;
  return draw_lines(frame, series);
}

// Parts of a step's time on rank 0, where every step tells them.
std::string draw_time(const Page& page) {
  std::vector<ChartSeries> parts;
  const std::string prefix = "work_ms.";
  for (const auto& [field, curve] : page.history.curves)
    if (field.starts_with(prefix) && curve.steps.size() > 1 && sum_of(curve) > 0)
      parts.push_back(page.series(field, field.substr(prefix.size()), 0));
  if (parts.empty()) return {};
  for (const ChartSeries& part : parts)
    if (part.x != parts[0].x) return {};
  std::stable_sort(parts.begin(), parts.end(), [](const ChartSeries& a, const ChartSeries& b) {
    return std::accumulate(a.y.begin(), a.y.end(), 0.0) > std::accumulate(b.y.begin(), b.y.end(), 0.0);
  });
  if (parts.size() > kMostParts) {
    ChartSeries& rest = parts[kMostParts - 1];
    for (size_t k = kMostParts; k < parts.size(); ++k)
      for (size_t i = 0; i < rest.y.size(); ++i) rest.y[i] += parts[k].y[i];
    rest.name = "the rest";
    parts.resize(kMostParts);
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].color = static_cast<int>(i % 10);
  return draw_stack(page.frame("Where the time of rank 0 goes", "ms per step"), parts);
}

std::string draw_curves(const Page& page) {
  std::string out = "<div class=\"charts\">\n";
  if (page.has("loss")) out += draw_loss(page);
  if (page.has("grad_norm")) {
    ChartFrame frame = page.frame("Gradient norm", "before clipping");
    const auto [low, high] = std::minmax_element(page.history.curve("grad_norm").values.begin(),
                                                 page.history.curve("grad_norm").values.end());
    frame.logarithmic = *low > 0 && *high > 20 * *low;
    out += draw_lines(frame, {page.series("grad_norm", "", 0)});
  }
  const auto simple = [&](const char* field, const char* title, const char* unit, int color, bool from_zero) {
    if (!page.has(field)) return;
    ChartFrame frame = page.frame(title, unit);
    frame.from_zero = from_zero;
    out += draw_lines(frame, {page.series(field, "", color)});
  };
  simple("lr", "Learning rate", "", 2, true);
  simple("tokens_per_s", "Speed", "tokens/s, all ranks", 2, true);
  if (page.has("mem_peak_bytes")) out += draw_memory(page);
  out += draw_time(page);
  simple("aux_loss", "Load-balance loss", "unweighted", 3, false);
  simple("imbalance", "Imbalance", "rows of the fullest expert over the mean, worst layer", 1, false);
  if (sum_of(page.history.curve("dropped_rows")) > 0) simple("dropped_rows", "Dropped rows", "per step", 1, true);
  return out + "</div>\n";
}

}  // namespace

std::string draw_report(const MetricsHistory& history, const std::string& title) {
  const Page page(history);
  std::string html = draw_run(history.runs) + draw_tiles(page) + draw_predictions(page) + draw_curves(page) +
                     draw_moves(page) + draw_loads(page);
  if (history.broken_lines > 0)
    html += fmt::format("<p>{} lines of the metrics were no steps and are left out.</p>\n", history.broken_lines);
  return html_page(title, html);
}

}  // namespace mw
