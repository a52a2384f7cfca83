#include "planner/picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace mw {
namespace {

constexpr double kWidth = 960, kPanel = 240, kLeft = 70, kHead = 46, kRow = 24;
constexpr int64_t kMostPictured = 20000;  // stages x micro-batches
const char* const kColours[] = {"#4e79a7", "#f28e2b", "#59a14f", "#76b7b2", "#edc948",
                                "#e15759", "#b07aa1", "#9c755f", "#bab0ac", "#ff9da7"};

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string bar(double x, double y, double width, double height, const char* colour) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, width,
                     height, colour);
}

// What a rank's memory is drawn as: kinds of the table, libraries, and routed rows beyond those that are committed.
std::vector<std::pair<std::string, int64_t>> parts_of(const RankMemory& rank) {
  std::vector<std::pair<std::string, int64_t>> parts;
  for (int kind = 0; kind < kByteKinds; ++kind)
    parts.emplace_back(name_of(static_cast<ByteKind>(kind)), rank.table.by_kind[kind]);
  parts.emplace_back("libraries", rank.libraries);
  parts.emplace_back("rows up to p99", std::max<int64_t>(0, rank.rows_p99 - rank.table.routed_committed));
  return parts;
}

std::string draw_memory(const Request& request, const Estimate& estimate, double top) {
  const auto most = static_cast<double>(std::max(estimate.needed, request.profile.memory_bytes)) * 1.05;
  const double bottom = top + kHead + kPanel,
               step = (kWidth - kLeft - 200) / static_cast<double>(estimate.memory.size());
  std::string svg = text_at(kLeft, top + 20, "start", "memory by stage");
  for (size_t stage = 0; stage < estimate.memory.size(); ++stage) {
    const RankMemory& rank = estimate.memory[stage];
    const double x = kLeft + step * static_cast<double>(stage);
    double y = bottom;
    size_t colour = 0;
    for (const auto& [name, bytes] : parts_of(rank)) {
      const double height = static_cast<double>(bytes) / most * kPanel;
      y -= height;
      svg += bar(x, y, step * 0.8, height, kColours[colour++]);
    }
    if (step > 14) svg += text_at(x + step * 0.4, bottom + 16, "middle", std::to_string(stage));
  }
  size_t line = 0;
  for (const auto& [name, bytes] : parts_of(estimate.memory.front())) {
    const double y = top + kHead + 20.0 * static_cast<double>(line);
    svg += bar(kWidth - 180, y, 14, 14, kColours[line++]);
    svg += text_at(kWidth - 160, y + 12, "start", name);
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
  double most = 0;
  for (const auto& [ranks, mfu] : points) most = std::max(most, mfu);
  for (size_t i = 0; i < points.size(); ++i) {
    const double x = kLeft + step * static_cast<double>(i), height = points[i].second / most * kPanel;
    svg += bar(x, bottom - height, step * 0.5, height, kColours[0]);
    svg += text_at(x + step * 0.25, bottom - height - 6, "middle", fmt::format("{:.1f} %", 100 * points[i].second));
    svg += text_at(x + step * 0.25, bottom + 16, "middle", fmt::format("{} ranks", points[i].first));
  }
  return svg;
}

const char* colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return kColours[0];
    case ActionKind::backward:
    case ActionKind::backward_input: return kColours[2];
    case ActionKind::backward_weight: return kColours[4];
    default: return kColours[8];
  }
}

// The schedule of one step, scaled to the width.
std::string draw_timeline(const Request& request, const Layout& layout, double top) {
  Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
  Timeline run;
  const StepTime time = estimator.simulated(layout, &run).time;
  const Schedule schedule = make_schedule(layout.pipeline());
  std::string svg =
      text_at(kLeft, top + 20, "start",
              fmt::format("one step before the update: {:.4g} s (blue forward, green backward, yellow weight "
                          "gradients, grey sums, messages and waiting for them)",
                          time.total() - time.optimizer));
  const double scale = run.makespan > 0 ? (kWidth - kLeft - 20) / run.makespan : 0;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const double y = top + kHead + kRow * static_cast<double>(rank);
    svg += text_at(kLeft - 6, y + kRow * 0.7, "end", fmt::format("rank {}", rank));
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const ActionTime& at = run.actions[rank][i];
      const double width = (at.end - at.begin) * scale;
      if (width > 0.05)
        svg += bar(kLeft + at.begin * scale, y, width, kRow * 0.85, colour_of(schedule.ranks[rank][i].kind));
    }
  }
  return svg;
}

}  // namespace

std::string draw_plan_svg(const Request& request, const Estimate& estimate) {
  const Layout& layout = estimate.layout;
  const double below = 2 * (kHead + kPanel + 40), height = below + kHead + kRow * layout.pp + 30;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  svg += text_at(kLeft, 16, "start", describe(layout));
  svg += draw_memory(request, estimate, 20) + draw_mfu(request, 20 + kHead + kPanel + 30);
  if (layout.micro_batches * layout.stages() <= kMostPictured) svg += draw_timeline(request, layout, below);
  else svg += text_at(kLeft, below + 20, "start", "the timeline has too many micro-batches to be shown");
  return svg + "</svg>\n";
}

}  // namespace mw
