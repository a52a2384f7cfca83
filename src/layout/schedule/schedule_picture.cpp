#include "layout/schedule/schedule_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mw {
namespace {

struct Box {
  ActionKind kind;
  int64_t micro_batch;
  int chunk;  // which of the rank's stages
  ActionTime time;
};

bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward || kind == ActionKind::backward_input ||
         kind == ActionKind::backward_weight;
}

// What computes and takes time on a rank, in order.
std::vector<Box> boxes_of(const Schedule& schedule, const Timeline& timeline, int rank) {
  std::vector<Box> boxes;
  const std::vector<int> stages = stages_of_rank(schedule.shape, rank);
  for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
    const Action& action = schedule.ranks[rank][i];
    const ActionTime& time = timeline.actions[rank][i];
    if (!is_compute(action.kind) || time.end <= time.begin) continue;
    const auto chunk = std::find(stages.begin(), stages.end(), action.stage) - stages.begin();
    boxes.push_back({action.kind, action.micro_batch, static_cast<int>(chunk), time});
  }
  return boxes;
}

std::string number_of(const Box& box) {
  const std::string number = std::to_string(box.micro_batch);
  if (box.chunk == 0) return number;
  return number + (box.chunk < 26 ? std::string(1, static_cast<char>('a' + box.chunk)) : "z+");
}

std::string label_of(const Box& box) {
  const char letter = box.kind == ActionKind::forward          ? 'F'
                      : box.kind == ActionKind::backward       ? 'B'
                      : box.kind == ActionKind::backward_input ? 'I'
                                                               : 'W';
  return letter + number_of(box);
}

double shortest_box(const Schedule& schedule, const Timeline& timeline) {
  double shortest = timeline.makespan;
  for (int rank = 0; rank < schedule.shape.ranks; ++rank)
    for (const Box& box : boxes_of(schedule, timeline, rank))
      shortest = std::min(shortest, box.time.end - box.time.begin);
  return shortest;
}

std::string stages_text(const PipelineShape& shape, int rank) {
  std::string text;
  for (const int stage : stages_of_rank(shape, rank)) text += fmt::format("{}{}", text.empty() ? "" : " ", stage);
  return text;
}

// --- SVG ---

struct Look {
  ActionKind kind;
  const char* name;
  int red, green, blue;
};
constexpr Look kLooks[] = {{ActionKind::forward, "forward", 66, 133, 200},
                           {ActionKind::backward, "backward", 60, 160, 110},
                           {ActionKind::backward_input, "backward, input part", 60, 160, 110},
                           {ActionKind::backward_weight, "backward, weight part", 224, 150, 60}};

constexpr double kRow = 34, kBox = 28, kLeft = 76, kTop = 76, kRight = 230;

// Neighbouring micro-batches differ in how much white is mixed in.
std::string colour_of(ActionKind kind, int64_t micro_batch) {
  const Look& look = *std::find_if(std::begin(kLooks), std::end(kLooks), [&](const Look& l) { return l.kind == kind; });
  const double white = 0.12 * static_cast<double>(micro_batch % 5);
  const auto mix = [&](int channel) { return static_cast<int>(std::lround(channel + white * (255 - channel))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(look.red), mix(look.green), mix(look.blue));
}

std::string svg_text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

// A later stage of the rank has a dark bar below for each stage before it.
std::string svg_box(const Box& box, double top, double scale) {
  const double x = kLeft + box.time.begin * scale, width = (box.time.end - box.time.begin) * scale;
  std::string text = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"#ffffff\"/>\n", x, top,
      width, kBox, colour_of(box.kind, box.micro_batch));
  for (int i = 0; i < std::min(box.chunk, 3); ++i)
    text += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"2\" fill=\"#202020\"/>\n", x + 1,
                        top + kBox - 3 - 3 * i, width - 2);
  const std::string number = number_of(box);
  if (width >= 7 * static_cast<double>(number.size())) text += svg_text(x + width / 2, top + 16, "middle", number);
  return text;
}

// 1, 2 or 5 times a power of ten, so that ticks stand 50 pixels apart or more.
double tick_step(double scale) {
  const double least = 50 / scale;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::string svg_axis(double makespan, double bottom, double scale) {
  std::string text;
  const double step = tick_step(scale);
  for (int64_t i = 0; static_cast<double>(i) * step <= makespan * (1 + 1e-9); ++i) {
    const double x = kLeft + static_cast<double>(i) * step * scale;
    text += fmt::format("<path d=\"M{0:.2f} {1:.1f}V{2:.1f}\" stroke=\"#d0d0d0\"/>\n", x, kTop - 4, bottom + 4);
    text += svg_text(x, bottom + 18, "middle", fmt::format("{:g}", static_cast<double>(i) * step));
  }
  return text;
}

std::string svg_legend(const std::vector<bool>& used, bool chunks) {
  std::string text;
  double x = kLeft;
  for (size_t i = 0; i < std::size(kLooks); ++i) {
    if (!used[i]) continue;
    text += fmt::format("<rect x=\"{:.1f}\" y=\"40\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x,
                        colour_of(kLooks[i].kind, 0));
    text += svg_text(x + 19, 52, "start", kLooks[i].name);
    x += 34 + 6.5 * static_cast<double>(std::string(kLooks[i].name).size());
  }
  if (chunks) text += svg_text(x, 52, "start", "a bar and b, c: the rank's second, third stage");
  return text;
}

}  // namespace

std::string draw_schedule_text(const Schedule& schedule, const Timeline& timeline) {
  constexpr double kMostColumns = 2000;
  const double unit = std::max(shortest_box(schedule, timeline), timeline.makespan / kMostColumns);
  const auto column_of = [&](double time) { return static_cast<size_t>(std::lround(unit > 0 ? time / unit : 0)); };
  std::vector<std::vector<std::string>> rows;
  size_t width = 1;
  for (int rank = 0; rank < schedule.shape.ranks; ++rank) {
    auto& row = rows.emplace_back(column_of(timeline.makespan), ".");
    for (const Box& box : boxes_of(schedule, timeline, rank)) {
      const size_t begin = column_of(box.time.begin), end = std::min(column_of(box.time.end), row.size());
      for (size_t i = begin; i < end; ++i) row[i] = i == begin ? label_of(box) : "--";
      width = std::max(width, label_of(box).size());
    }
  }
  std::string text;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    std::string line = fmt::format("rank {:<3}|", rank);
    for (const std::string& cell : rows[rank]) line += fmt::format(" {:<{}}", cell, width);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text + fmt::format("a column is {:.4g} of the {:.6g} that all takes\n", unit, timeline.makespan);
}

std::string describe_ranks(const Schedule& schedule, const Timeline& timeline, const ScheduleReport& report) {
  size_t width = 6;
  for (int rank = 0; rank < schedule.shape.ranks; ++rank)
    width = std::max(width, stages_text(schedule.shape, rank).size());
  std::string text = fmt::format("rank  {:<{}}  peak live  busy      bubble\n", "stages", width);
  for (int rank = 0; rank < schedule.shape.ranks; ++rank)
    text += fmt::format("{:<4}  {:<{}}  {:<9}  {:<8.6g}  {:.1f} %\n", rank, stages_text(schedule.shape, rank), width,
                        report.rank_peak[rank], timeline.ranks[rank].busy, 100 * timeline.bubble(rank));
  return text;
}

std::string draw_schedule_svg(const Schedule& schedule, const Timeline& timeline, const ScheduleReport& report) {
  constexpr double kNarrow = 26, kWidest = 30000;  // pixels of the shortest box, and of all
  const double makespan = timeline.makespan, shortest = shortest_box(schedule, timeline);
  const double scale = makespan > 0 ? std::min(kNarrow / shortest, kWidest / makespan) : 1;
  const double end = kLeft + makespan * scale, bottom = kTop + kRow * schedule.shape.ranks;
  std::vector<bool> used(std::size(kLooks), false);
  std::string rows;
  for (int rank = 0; rank < schedule.shape.ranks; ++rank) {
    const double top = kTop + kRow * rank + (kRow - kBox) / 2;
    rows += svg_text(kLeft - 10, top + 18, "end", fmt::format("rank {}", rank));
    for (const Box& box : boxes_of(schedule, timeline, rank)) {
      rows += svg_box(box, top, scale);
      for (size_t i = 0; i < used.size(); ++i) used[i] = used[i] || kLooks[i].kind == box.kind;
    }
    rows += svg_text(end + 14, top + 18, "start",
                     fmt::format("peak {} live, bubble {:.1f} %", report.rank_peak[rank], 100 * timeline.bubble(rank)));
  }
  const double width = std::max(end + kRight, 640.0), height = bottom + 34;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height);
  svg += fmt::format("<text x=\"{:.1f}\" y=\"24\" font-size=\"15\">{}; all takes {:.6g}</text>\n", kLeft,
                     describe(schedule.shape), makespan);
  svg += svg_legend(used, schedule.shape.chunks > 1);
  return svg + svg_axis(makespan, bottom, scale) + rows + "</svg>\n";
}

}  // namespace mw
