#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "cli/commands.h"
#include "layout/schedule/schedule_picture.h"

namespace mw {
namespace {

constexpr int64_t kMostPictured = 100000;  // stages x micro-batches

struct ScheduleOptions {
  std::string kind, svg;
  int ranks = 4, chunks = 0;
  int64_t micro_batches = 8;
  std::vector<double> costs = {1, 1, 1};
  double latency = 0;
};

PipelineShape shape_of(const ScheduleOptions& options) {
  PipelineShape shape{schedule_kind_of(options.kind), options.ranks, options.chunks, options.micro_batches};
  const bool several = shape.kind == ScheduleKind::interleaved || shape.kind == ScheduleKind::zb_v;
  if (options.chunks == 0) shape.chunks = several ? 2 : 1;
  check_shape(shape);
  if (shape.micro_batches > kMostPictured / shape.stages())
    fail(Exit::usage,
         fmt::format("{} stages x {} micro-batches exceed the {} cells that a picture can show", shape.stages(),
                     shape.micro_batches, kMostPictured),
         fmt::format("set --micro-batches to at most {}, or lower --ranks", kMostPictured / shape.stages()));
  return shape;
}

StageCost cost_of(const ScheduleOptions& options) {
  for (const double cost : {options.costs[0], options.costs[1], options.costs[2], options.latency})
    if (!std::isfinite(cost) || cost < 0 || cost > 1e9)
      fail(Exit::usage, fmt::format("--costs or --latency: expected 0 to 1e9, got {}", cost),
           "pass, for example, --costs 1,1,1 --latency 0.1");
  if (options.costs[0] <= 0)
    fail(Exit::usage, "--costs: expected a forward cost above 0, got 0", "pass, for example, --costs 1,1,1");
  return {options.costs[0], options.costs[1], options.costs[2], options.latency};
}

Exit print_schedule(const ScheduleOptions& options) {
  const PipelineShape shape = shape_of(options);
  const StageCost cost = cost_of(options);
  if (!options.svg.empty()) check_picture(options.svg, "--svg");
  const Schedule schedule = make_schedule(shape);
  const ScheduleReport report = validate_schedule(schedule);
  const Timeline timeline = simulate(schedule, cost);
  std::printf("%s; of one stage: forward %g, backward %g + %g, message %g\n", describe(shape).c_str(), cost.forward,
              cost.backward_input, cost.backward_weight, cost.latency);
  std::fputs(draw_schedule_text(schedule, timeline).c_str(), stdout);
  std::fputs(describe_ranks(schedule, timeline, report).c_str(), stdout);
  if (options.svg.empty()) return Exit::ok;
  write_output_text(options.svg, draw_schedule_svg(schedule, timeline, report));
  std::printf("wrote %s\n", options.svg.c_str());
  return Exit::ok;
}

}  // namespace

Command add_schedule_command(CommandLine& line) {
  Subcommand sub = line.add_command("schedule", "show a pipeline schedule: its timeline, memory peaks and bubbles");
  auto options = std::make_shared<ScheduleOptions>();
  sub.add_option("KIND", options->kind, "gpipe, 1f1b, interleaved, zb_h1 or zb_v").required();
  sub.add_option("--ranks", options->ranks, "pipeline ranks (mesh.pp)").show_default();
  sub.add_option("--micro-batches", options->micro_batches, "train.micro_batches").show_default();
  sub.add_option("--chunks", options->chunks, "stages per rank; default: 2 for interleaved and zb_v, else 1");
  sub.add_option("--costs", options->costs,
                 "cost of one stage's forward, input gradients and weight gradients; default: 1,1,1")
      .values("F,I,W");
  sub.add_option("--latency", options->latency, "time of a message between stages, in the unit of --costs")
      .show_default();
  sub.add_option("--svg", options->svg, "also draw the schedule into this SVG file");
  return {sub, [options] { return print_schedule(*options); }};
}

}  // namespace mw
