#include "plan/picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "spec/schedule_picture.h"

namespace mw {
namespace {

constexpr double kWidth = 960, kPanel = 240, kLeft = 70, kHead = 46;
constexpr int64_t kMostPictured = 20000;  // stages x micro-batches
const char* const kColours[] = {"#4e79a7", "#f28e2b", "#59a14f", "#76b7b2", "#edc948",
                                "#e15759", "#b07aa1", "#9c755f", "#bab0ac"};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string bar(double x, double y, double width, double height, const char* colour) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, width,
                     height, colour);
}

// Kinds of the table, then libraries.
std::string draw_memory(const Request& request, const Estimate& estimate, double top) {
  const auto most = static_cast<double>(std::max(estimate.needed, request.profile.memory_bytes)) * 1.05;
  const double bottom = top + kHead + kPanel,
               step = (kWidth - kLeft - 200) / static_cast<double>(estimate.memory.size());
  std::string svg = text_at(kLeft, top + 20, "start", "memory by stage");
  for (size_t stage = 0; stage < estimate.memory.size(); ++stage) {
    const RankMemory& rank = estimate.memory[stage];
    const double x = kLeft + step * static_cast<double>(stage);
    double y = bottom;
    for (int kind = 0; kind <= kByteKinds; ++kind) {
      const int64_t bytes = kind < kByteKinds ? rank.table.by_kind[kind] : rank.libraries;
      const double height = static_cast<double>(bytes) / most * kPanel;
      y -= height;
      svg += bar(x, y, step * 0.8, height, kColours[kind]);
    }
    if (step > 14) svg += text_at(x + step * 0.4, bottom + 16, "middle", std::to_string(stage));
  }
  for (int kind = 0; kind <= kByteKinds; ++kind) {
    const double y = top + kHead + 20.0 * kind;
    svg += bar(kWidth - 180, y, 14, 14, kColours[kind]);
    svg +=
        text_at(kWidth - 160, y + 12, "start", kind < kByteKinds ? name_of(static_cast<ByteKind>(kind)) : "libraries");
  }
  const double limit = bottom - static_cast<double>(request.profile.memory_bytes) / most * kPanel;
  svg += fmt::format("<path d=\"M{} {:.1f}H{}\" stroke=\"#000000\" stroke-dasharray=\"4\"/>\n", kLeft, limit,
                     kWidth - 200);
  return svg + text_at(kLeft - 6, limit + 4, "end", format_bytes(request.profile.memory_bytes));
}

std::string draw_mfu(const Request& request, double top) {
  const double bottom = top + kHead + kPanel;
  std::string svg = text_at(kLeft, top + 20, "start", "MFU of the best layout against ranks");
  std::vector<std::pair<int, double>> points;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    Request other = request;
    other.ranks = static_cast<int>(request.ranks * factor);
    if (other.ranks < 1 || other.ranks > other.profile.levels.back().ranks || layouts_of(other).empty()) continue;
    const SearchResult result = search(other, 20);
    if (result.best.empty()) continue;
    const Estimator estimator(other.model, other.run, other.profile, other.load, other.ranks);
    points.emplace_back(other.ranks, estimator.model_flops_per_step() / result.best.front().time.total() /
                                         estimator.peak_flops_per_s());
  }
  const double step = (kWidth - kLeft - 200) / 5;
  for (size_t i = 0; i < points.size(); ++i) {
    const double x = kLeft + step * static_cast<double>(i), height = points[i].second * kPanel;
    svg += bar(x, bottom - height, step * 0.5, height, kColours[0]);
    svg += text_at(x + step * 0.25, bottom - height - 6, "middle", fmt::format("{:.1f} %", 100 * points[i].second));
    svg += text_at(x + step * 0.25, bottom + 16, "middle", fmt::format("{} ranks", points[i].first));
  }
  return svg;
}

}  // namespace

std::string draw_plan_svg(const Request& request, const Estimate& estimate) {
  const Layout& layout = estimate.layout;
  const double below = 2 * (kHead + kPanel + 40);
  std::string timeline;
  const bool pictured = layout.micro_batches * layout.stages() <= kMostPictured;
  if (pictured) {
    Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
    Timeline run;
    estimator.simulated(layout, &run);
    const Schedule schedule = make_schedule(layout.pipeline());
    timeline = draw_schedule_svg(schedule, run, validate_schedule(schedule));
  }
  const double height = below + (pictured ? 80 + 40.0 * layout.pp : 40);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  svg += text_at(kLeft, 16, "start", describe(layout));
  svg += draw_memory(request, estimate, 20) + draw_mfu(request, 20 + kHead + kPanel + 30);
  if (pictured) {
    // The schedule's picture is a file of its own: it is scaled to the width of this one.
    svg += fmt::format("<g transform=\"translate(0 {:.0f})\">\n", below);
    const size_t view = timeline.find("viewBox");
    svg += fmt::format("<svg width=\"{:.0f}\" height=\"{:.0f}\" preserveAspectRatio=\"xMinYMin meet\" ", kWidth,
                       height - below);
    svg += timeline.substr(view) + "</g>\n";
  } else {
    svg += text_at(kLeft, below + 20, "start", "the timeline has too many micro-batches to be shown");
  }
  return svg + "</svg>\n";
}

}  // namespace mw
