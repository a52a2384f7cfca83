#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "cli/run_commands.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace mw {
namespace {

std::string describe_progress(const RunSpec& run, int64_t step) {
  const std::string& dir = run.checkpoint.dir;
  const int64_t steps = run.train.steps;
  if (!path_exists(dir, Exit::checkpoint)) {
    const bool relative = std::filesystem::path(dir).is_relative();
    return fmt::format("0 of {} steps are saved: {} does not exist{}", steps, dir,
                       relative ? fmt::format(" (relative to {})", std::filesystem::current_path().native()) : "");
  }
  if (step > steps) return fmt::format("all {} steps are saved in {}, which goes on to step {}", steps, dir, step);
  return fmt::format("{} of {} steps are saved in {}", step, steps, dir);
}

}  // namespace

Command add_finished_command(CommandLine& line) {
  Subcommand sub =
      line.add_command("finished", "for job scripts: is a run complete? exit code 0: yes, 1: steps remain");
  auto path = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  sub.add_option("RUN", *path, "run file (TOML)").required();
  sub.add_option("OVERRIDES", *overrides, "key=value overrides, as given to `train`");
  return {sub, [=] {
            const RunSpec run = read_run_file(*path, *overrides);
            if (run.checkpoint.dir.empty())
              fail(Exit::config, "checkpoint.dir is empty, so the progress of this run is not recorded",
                   "set checkpoint.dir to the folder of its checkpoints");
            const std::string newest = newest_checkpoint(run.checkpoint.dir);
            int64_t step = 0;
            if (!newest.empty()) {
              const CheckpointReader reader(newest);
              reader.check_files();
              step = reader.index().state.step;
            }
            std::printf("%s\n", describe_progress(run, step).c_str());
            return step >= run.train.steps ? Exit::ok : Exit::check_failed;
          }};
}

}  // namespace mw
