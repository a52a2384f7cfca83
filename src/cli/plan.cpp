#include <cstdio>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/commands.h"
#include "layout/plan.h"
#include "planner/auto_transport.h"
#include "planner/calibrate.h"
#include "planner/picture.h"
#include "planner/report.h"

namespace mw {
namespace {

struct PlanOptions {
  std::string run, platform, emit, plot, load, metrics, output;
  std::optional<std::string> why;
  std::vector<std::string> overrides;
  int ranks = 0, top = 10;
  bool json = false, list_all = false, force = false;
};

// ranks: where neither the command line nor the run file says how many.
Request read_request(const PlanOptions& options, int64_t ranks = 0) {
  RunSpec run = read_run_file(options.run, options.overrides);
  if (!options.platform.empty()) run.plan.platform = options.platform;
  if (options.ranks > 0) run.plan.ranks = options.ranks;
  if (run.plan.ranks == 0) run.plan.ranks = ranks;
  check_training(run);
  Request request = make_request(run);
  if (!options.load.empty()) request.load.measured = read_loads(options.load, request.model);
  return request;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void plot(const Request& request, const Estimate& estimate, const std::string& path) {
  write_output_text(path, draw_plan_svg(request, estimate));
  std::fflush(stdout);
  std::fprintf(stderr, "wrote %s\n", path.c_str());
}

void emit(const Request& request, const Layout& layout, const std::string& path) {
  write_output_text(path, to_toml(with_layout(request.run, layout)));
  std::fflush(stdout);
  std::fprintf(stderr, "wrote %s: %s\n", path.c_str(), describe(layout).c_str());
  if (request.run.data.path.empty() && request.run.data.blend.empty())
    std::fprintf(stderr, "it names no text or tokens yet: give `train` data.path=FILE\n");
}

void check_new_output(const PlanOptions& options, const std::string& path) {
  if (!options.force && path_exists(path))
    fail(Exit::usage, fmt::format("{} already exists", printable(path)), "pass --force to overwrite it");
  check_output(path);
}

Exit write_calibrated(const PlanOptions& options) {
  if (options.output.empty())
    fail(Exit::usage, "--calibrate needs a file to write the new profile to", "pass -o mine.json");
  check_new_output(options, options.output);
  const std::vector<MeasuredStep> steps = read_measured_steps(options.metrics);
  const Request request = read_request(options, steps.back().ranks);
  const Calibration calibration = calibrate(request, steps, options.metrics);
  for (const std::string& line : calibration.lines) std::printf("%s\n", line.c_str());
  write_output_text(options.output, to_json(calibration.profile));
  std::printf("wrote %s\n", options.output.c_str());
  return Exit::ok;
}

// Puts what a run of the layout would choose in the place of moe.transport = "auto", which otherwise is flat. Returns a
// line that says so, or "".
std::string resolve_auto_transport(const Request& request, Layout& layout) {
  if (!layout.transport.empty()) return "";
  const RunSpec run = with_layout(request.run, layout);
  const NodeMap nodes{run.mesh.ranks_per_node > 0 ? run.mesh.ranks_per_node : request.profile.ranks_per_node, {}};
  const TransportChoice choice = choose_auto_transport(run, request.ranks, nodes, "", request.load.measured);
  if (choice.seconds > 0 && choice.name != "flat") layout.transport = choice.name;
  return describe(choice, run.plan.platform);
}

void announce(int64_t layouts) {
  constexpr int64_t kMany = 2'000'000;  // weighed in some ten seconds or more
  if (layouts >= kMany) fmt::print(stderr, "moewright: weighing {} layouts, which may take minutes\n", layouts);
}

Exit plan(const PlanOptions& options) {
  if (!options.metrics.empty()) return write_calibrated(options);
  if (!options.emit.empty()) check_new_output(options, options.emit);
  if (!options.plot.empty()) check_picture(options.plot, "--plot");
  if (!options.why)
    refuse_chosen_keys(options.overrides,
                       "leave it out; --why \"\" explains the layout of the run file and these keys");
  const Request request = read_request(options);
  std::optional<Layout> asked;
  if (options.why) {
    asked = parse_layout(*options.why, layout_of(request.run));
    check_layout(request, *asked);  // says what stands against it, also where nothing else is possible
    const std::string line = resolve_auto_transport(request, *asked);
    if (!line.empty() && !options.json) print(line + "\n");
  }
  const SearchResult result = search(request, kSimulated, announce);
  if (options.list_all) {
    print(list_all(request, result));
    return Exit::ok;
  }
  if (asked) {
    Estimator estimator(request.model, request.run, request.profile, request.load, request.ranks);
    const Estimate estimate = estimator.simulated(*asked);
    print(options.json ? to_json(request, estimate).dump(2) + "\n" : describe_one(request, result, estimate));
    if (!options.emit.empty()) emit(request, *asked, options.emit);
    if (!options.plot.empty()) plot(request, estimate, options.plot);
    return Exit::ok;
  }
  if (result.best.empty()) fail_without_room(request, result);
  check_layout(request, result.best.front().layout);
  print(options.json ? to_json(request, result, options.top).dump(2) + "\n" : describe(request, result, options.top));
  if (!options.emit.empty()) emit(request, result.best.front().layout, options.emit);
  if (!options.plot.empty()) plot(request, result.best.front(), options.plot);
  return Exit::ok;
}

}  // namespace

Command add_plan_command(CommandLine& line) {
  Subcommand sub = line.add_command("plan", "predict memory and step time, and find the best layout");
  auto options = std::make_shared<PlanOptions>();
  sub.add_option("RUN", options->run,
                 "run file (TOML), which is not changed; the search tries other values than the file's for mesh, "
                 "schedule, ZeRO, recompute and micro-batches, and for the transport if moe.transport is auto")
      .required();
  sub.add_option("OVERRIDES", options->overrides, "key=value overrides of the run file; the last one of a key counts");
  sub.add_option("--platform", options->platform, "profile of the machine (plan.platform)");
  sub.add_option("--ranks", options->ranks, "ranks to plan for (plan.ranks)").range(1, 1 << 20);
  sub.add_option("--top", options->top, "layouts to print").show_default().range(1, 1000000);
  sub.add_option(
      "--why", options->why,
      "explain one layout: that of the run file, with these keys changed, for example \"pp=4 ep=8\"; \"\" changes "
      "nothing; keys: pp, schedule, chunks (stages per rank), tp, tp_mode, ep, placement (mesh.placement: ep_first or "
      "dp_first), zero, micro_batches, recompute, transport");
  sub.add_option(
      "--load", options->load,
      "file of measured expert loads: the metrics.jsonl of a run, or a JSON list of one number per expert, which is "
      "used for every layer");
  sub.add_option("--emit", options->emit, "write a run file with the best layout, or that of --why");
  sub.add_option("--plot", options->plot, "draw the best layout, or that of --why, into this SVG file");
  sub.add_flag("--json", options->json, "print JSON");
  Option list = sub.add_flag("--list-all", options->list_all,
                             "print one line for every layout weighed: all that fit, and some that need more memory");
  for (const char* other : {"--why", "--emit", "--plot", "--json"}) list.excludes(other);
  Option calibrated = sub.add_option("--calibrate", options->metrics,
                                     "metrics.jsonl of a run that was trained with this run file: scale the profile "
                                     "until it predicts the step time of that run");
  for (const char* other : {"--why", "--emit", "--plot", "--json", "--list-all"}) calibrated.excludes(other);
  sub.add_option("-o,--output", options->output, "where --calibrate writes the new profile").needs(calibrated);
  sub.add_flag("--force", options->force, "let --emit and -o overwrite a file");
  return {sub, [options] { return plan(*options); }};
}

}  // namespace mw
