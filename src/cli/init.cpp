#include <fmt/ranges.h>

#include <cstdio>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "config/presets.h"
#include "layout/plan.h"
#include "planner/report.h"

namespace mw {
namespace {

struct InitOptions {
  std::string path, model, platform;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool force = false;
};

// The fastest layout that fits, with a line that says what chose it.
std::string choose_layout(RunSpec& run) {
  const Request request = make_request(run);
  const SearchResult result = search(request);
  if (result.best.empty()) fail_without_room(request, result);
  const Estimate& best = result.best.front();
  check_layout(request, best.layout);
  run = with_layout(run, best.layout);
  return fmt::format(
      "Layout: the fastest of {} that `moewright plan` compared for {} ranks of {}: {:.0f} ms per step.\n",
      result.layouts, request.ranks, run.plan.platform, best.time.total() * 1e3);
}

Exit init(InitOptions options) {
  if (options.path.find('=') != std::string::npos)  // no FILE: the first key stands in its place
    options.overrides.insert(options.overrides.begin(), std::exchange(options.path, ""));
  const bool printed = options.path.empty() || options.path == "-";
  if (!printed && !options.force && path_exists(options.path))
    fail(Exit::usage, fmt::format("{} already exists", options.path),
         "choose another FILE, or pass --force to overwrite it");
  std::vector<std::string> keys = options.overrides;
  if (!options.model.empty()) keys.insert(keys.begin(), "model=hf:" + options.model);
  RunSpec run = parse_run_text("", "command line", keys);
  if (!options.platform.empty()) run.plan.platform = options.platform;
  if (options.ranks > 0) run.plan.ranks = options.ranks;
  load_model_spec(run);  // refuses a folder that is none
  std::string layout;
  if (!options.platform.empty() || options.ranks > 0) {
    refuse_chosen_keys(options.overrides,
                       "remove this override, or remove --platform and --ranks to set the layout by hand");
    layout = choose_layout(run);
  }
  const std::string text = commented_run_file(run) + (layout.empty() ? "" : "\n# " + layout);
  if (printed) {
    std::fputs(text.c_str(), stdout);
    return Exit::ok;
  }
  write_output_text(options.path, text);
  std::printf("wrote %s\n", options.path.c_str());
  if (!layout.empty())
    std::printf("%s%s\nmpirun -np %lld moewright train %s\n", layout.c_str(), describe(layout_of(run)).c_str(),
                static_cast<long long>(run.plan.ranks), options.path.c_str());
  return Exit::ok;
}

}  // namespace

Command add_init_command(CommandLine& line) {
  Subcommand sub = line.add_command("init", "write a commented run file with every key");
  auto options = std::make_shared<InitOptions>();
  sub.add_option("FILE", options->path, "file to write; default, or -: print to stdout");
  sub.add_option("OVERRIDES", options->overrides, "key=value overrides of the defaults");
  sub.add_option("--model", options->model, "Hugging Face model folder to continue training from");
  sub.add_option("--platform", options->platform, "platform profile of the machine to plan the layout for");
  sub.add_option("--ranks", options->ranks, "number of ranks to plan the layout for").range(1, 1 << 20);
  sub.add_flag("--force", options->force, "overwrite an existing file");
  sub.set_footer(fmt::format("Named models (model.preset=NAME): {}", fmt::join(preset_names(), ", ")));
  return {sub, [options] { return init(*options); }};
}

}  // namespace mw
