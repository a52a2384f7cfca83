#include <cstdio>

#include "cli/run_commands.h"
#include "config/idle_keys.h"
#include "train/verify/verify.h"

namespace mw {
namespace {

void warn_of_one_rank(const std::string& path) {
  std::fprintf(stderr,
               "warning: one rank alone is compared with itself, but for settings of one process such as "
               "memory.recompute; start more ranks, for example: mpirun -np 2 moewright verify %s mesh.ep=2\n",
               path.c_str());
}

void warn_of_idle_tolerances(const RunSpec& run) {
  for (const std::string& idle : describe_idle_tolerances(run)) std::fprintf(stderr, "warning: %s\n", idle.c_str());
}

}  // namespace

Command add_verify_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command(
      "verify", "check that the launched ranks, in the layout of a run file, compute what one process does");
  auto path = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  sub.add_option("RUN", *path,
                 "run file (TOML); [data] is not read: tokens are random; rank 0 also holds the whole model, so use a "
                 "small one; [verify] sets the tolerances, larger in bf16 than in fp32")
      .required();
  sub.add_option("OVERRIDES", *overrides,
                 "key=value overrides, for example mesh.ep=4 moe.transport=padded train.dtype=bf16");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              const RunSpec run = read_run_file(*path, *overrides);
              if (world.comm().size() == 1) warn_of_one_rank(*path);
              if (world.comm().rank() == 0) warn_of_idle_tolerances(run);
              return run_watched(world, run.watchdog.seconds, [&] { return run_verify(world, run); });
            });
          }};
}

}  // namespace mw
