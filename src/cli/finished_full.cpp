#include <cstdio>

#include "cli/run_commands.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_reader.h"

namespace mw {

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
            std::printf("%lld of %lld steps are saved in %s\n", static_cast<long long>(step),
                        static_cast<long long>(run.train.steps), run.checkpoint.dir.c_str());
            return step >= run.train.steps ? Exit::ok : Exit::check_failed;
          }};
}

}  // namespace mw
