#include "cli/run_commands.h"
#include "train/loop/trainer.h"

namespace mw {

Command add_train_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("train", "train a model; under mpirun or srun every rank runs the same command");
  auto path = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  auto profile = std::make_shared<bool>(false), dry_run = std::make_shared<bool>(false);
  sub.add_option("RUN", *path, "run file (TOML); `moewright init` writes one").required();
  sub.add_option("OVERRIDES", *overrides, "key=value overrides of the run file, for example train.lr=1e-3");
  sub.add_flag("--profile", *profile,
               "at the end, print how long each kind of work took (matrix products, attention, exchange, ...)");
  sub.add_flag("--dry-run", *dry_run,
               "check everything up to the first step (mesh, memory, data, disk space, checkpoint), write nothing");
  return {sub, [=] {
            const CpuTimes started = read_cpu_times();
            return run_in_world(invocation, [&](World& world) {
              const RunSpec run = read_run_file(*path, *overrides);
              return run_watched(world, run.watchdog.seconds, [&] {
                return run_training(world, run, {*profile, version_text(), started, *dry_run});
              });
            });
          }};
}

}  // namespace mw
