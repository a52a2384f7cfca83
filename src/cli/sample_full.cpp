#include <algorithm>
#include <cstdio>

#include "cli/run_commands.h"
#include "comm/cores.h"
#include "train/checkpoint.h"
#include "train/hf_weights.h"
#include "train/sample.h"

namespace mw {
namespace {

// Generation needs one sequence at a time: the training batch must not size its memory.
RunSpec sampling_run(RunSpec run, int64_t ranks) {
  run.train.global_batch = std::max<int64_t>(1, ranks / (run.mesh.tp * run.mesh.pp));
  run.train.micro_batches = 1;
  run.moe.aux_loss_coef = 0;
  return run;
}

// Prints the prompt and what the model goes on with, as it comes.
Exit run_sample(World& world, const RunSpec& run, const std::string& checkpoint) {
  const ModelSpec model = load_model_spec(run);
  if (const std::string why = why_no_sample(model, run); !why.empty())
    fail(Exit::unsupported, "sampling is not built for this run: " + why, "docs/limits.md lists what is missing");
  // One rank looks and tells: beside a run that trains, others may find another one.
  const std::string folder =
      broadcast_text(world.comm(), checkpoint.empty() ? newest_checkpoint(run.checkpoint.dir) : checkpoint, 0);
  if (folder.empty() && run.hf_dir.empty())
    fail(Exit::checkpoint, fmt::format("no complete checkpoint in \"{}\"", run.checkpoint.dir),
         "train first, or name one with --checkpoint");
  const NodePlace place = place_on_node(world, run.mesh);
  Engine engine(model, sampling_run(run, world.comm().size()), world.comm(),
                threads_per_rank(run.train.threads, place.ranks), place);
  if (folder.empty()) import_hf_weights(engine, run.hf_dir);
  else load_checkpoint(engine, folder, true);
  SampleSpec spec = run.sample;
  if (spec.tokens == 0) spec.tokens = 256;
  const std::vector<int32_t> prompt(reinterpret_cast<const unsigned char*>(spec.prompt.data()),
                                    reinterpret_cast<const unsigned char*>(spec.prompt.data()) + spec.prompt.size());
  const bool leader = world.comm().rank() == 0;
  if (leader) std::fputs(spec.prompt.c_str(), stdout);
  generate(engine, prompt, spec, [&](int32_t token) {
    if (leader) std::fputc(token, stdout);
    if (leader) std::fflush(stdout);
    return token != 0;  // a zero byte ends a file
  });
  if (leader) std::fputc('\n', stdout);
  return Exit::ok;
}

}  // namespace

Command add_sample_command(CLI::App& app, const Invocation& invocation) {
  auto* sub = app.add_subcommand("sample", "continue a prompt with a trained byte-level model");
  auto path = std::make_shared<std::string>(), checkpoint = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  sub->add_option("RUN", *path, "run file that the model was trained with")->required();
  sub->add_option("OVERRIDES", *overrides, "key=value, for example sample.prompt=\"int main(\" sample.tokens=200");
  sub->add_option("--checkpoint", *checkpoint, "checkpoint folder; the newest of checkpoint.dir when left out");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              const RunSpec run = read_run_file(*path, *overrides);
              return run_watched(world, run.watchdog.seconds, [&] { return run_sample(world, run, *checkpoint); });
            });
          }};
}

}  // namespace mw
