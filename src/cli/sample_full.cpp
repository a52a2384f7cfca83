#include <algorithm>
#include <cstdio>

#include "cli/run_commands.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/model_path.h"
#include "train/convert/hf_weights.h"
#include "train/loop/sample.h"
#include "train/loop/train_step.h"

namespace mw {
namespace {

// Where a model and its settings come from.
struct SampleSource {
  RunSpec run;
  std::string checkpoint;  // "": the weights of run.hf_dir
};

// The newest checkpoint of checkpoint.dir, or "" where a Hugging Face folder has the weights.
std::string choose_of_run(Comm& comm, const RunSpec& run) {
  const std::string& dir = run.checkpoint.dir;
  const std::string newest = broadcast_text(comm, dir.empty() ? "" : newest_checkpoint(dir), 0);
  if (newest.empty() && !run.hf_dir.empty()) return "";
  if (dir.empty())
    fail(Exit::checkpoint, "checkpoint.dir is empty: nothing says where the run's checkpoints are",
         "name a run folder instead of the run file, or a checkpoint with --checkpoint");
  return choose_checkpoint(comm, dir, stderr);
}

SampleSource find_source(Comm& comm, const std::string& path, const std::string& checkpoint,
                         const std::vector<std::string>& overrides) {
  SampleSource source;
  if (!checkpoint.empty()) source.checkpoint = choose_checkpoint(comm, checkpoint, stderr);
  switch (find_model_path(path).kind) {
    case ModelPathKind::missing:  // which the reader of run files refuses, unless it looks like a checkpoint
      if (step_of_folder(path.substr(path.find_last_of('/') + 1)) >= 0) choose_checkpoint(comm, path, stderr);
      [[fallthrough]];
    case ModelPathKind::file:
      source.run = read_run_file(path, overrides);
      if (checkpoint.empty()) source.checkpoint = choose_of_run(comm, source.run);
      break;
    case ModelPathKind::hf_folder: {
      std::vector<std::string> keys = overrides;
      keys.insert(keys.begin(), "model=hf:" + path);
      source.run = parse_run_text("", "command line", keys);
      break;
    }
    default: {
      const std::string found = choose_checkpoint(comm, path, stderr);
      source.run = read_stored_run(found, overrides);
      if (checkpoint.empty()) source.checkpoint = found;
    }
  }
  return source;
}

// Generation needs one sequence at a time: the training batch must not size its memory, nor the layout of the training
// a process that runs alone.
RunSpec sampling_run(RunSpec run, int64_t ranks) {
  if (ranks == 1) {
    const int64_t ranks_per_node = run.mesh.ranks_per_node;
    run.mesh = {};
    run.mesh.ranks_per_node = ranks_per_node;
    run.moe.transport = "auto";
  }
  run.train.global_batch = std::max<int64_t>(1, ranks / (run.mesh.tp * run.mesh.pp));
  run.train.micro_batches = 1;
  run.mesh.shares.clear();
  run.moe.aux_loss_coef = 0;
  return run;
}

// Prints the prompt and what the model goes on with, as it comes.
Exit run_sample(World& world, const SampleSource& source) {
  const RunSpec run = sampling_run(source.run, world.comm().size());
  const ModelSpec model = load_model_spec(run);
  if (const std::string why = why_no_sample(run); !why.empty())
    fail(Exit::unsupported, "sampling is not built for this run: " + why, "docs/limits.md lists what is missing");
  const bool leader = world.comm().rank() == 0;
  const std::unique_ptr<Tokenizer> tokenizer = leader ? open_run_tokenizer(run, model) : nullptr;
  const std::unique_ptr<Engine> owner = make_engine(world, run);
  Engine& engine = *owner;
  if (source.checkpoint.empty()) import_hf_weights(engine, run.hf_dir);
  else load_checkpoint(engine, source.checkpoint, true);
  SampleSpec spec = run.sample;
  if (spec.tokens == 0) spec.tokens = 256;
  const auto show = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  if (leader) show(spec.prompt);
  generate(engine, tokenizer.get(), spec, show);
  if (leader) show("\n");
  return Exit::ok;
}

}  // namespace

Command add_sample_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("sample", "continue a prompt with a trained model");
  auto path = std::make_shared<std::string>(), checkpoint = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  sub.add_option("MODEL", *path, "run folder, checkpoint, run file or Hugging Face model folder").required();
  sub.add_option("OVERRIDES", *overrides, "key=value, for example sample.prompt=\"int main(\" sample.tokens=200");
  sub.add_option(
      "--checkpoint", *checkpoint,
      "checkpoint or run folder with the weights; default: the weights of MODEL, or for a run file the newest "
      "checkpoint in checkpoint.dir");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              const SampleSource source = find_source(world.comm(), *path, *checkpoint, *overrides);
              return run_watched(world, source.run.watchdog.seconds, [&] { return run_sample(world, source); });
            });
          }};
}

}  // namespace mw
