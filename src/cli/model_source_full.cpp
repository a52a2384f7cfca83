#include <algorithm>

#include "cli/run_commands.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/model_path.h"
#include "train/convert/hf_weights.h"

namespace mw {
namespace {

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

}  // namespace

ModelArguments add_model_arguments(Subcommand& sub, const char* example) {
  ModelArguments arguments;
  sub.add_option("MODEL", *arguments.path, "run folder, checkpoint, run file or Hugging Face model folder").required();
  sub.add_option("OVERRIDES", *arguments.overrides, std::string("key=value, for example ") + example);
  sub.add_option(
      "--checkpoint", *arguments.checkpoint,
      "checkpoint or run folder with the weights; default: the weights of MODEL, or for a run file the newest "
      "checkpoint in checkpoint.dir");
  return arguments;
}

ModelSource find_model(Comm& comm, const ModelArguments& arguments) {
  const std::string &path = *arguments.path, &checkpoint = *arguments.checkpoint;
  const std::vector<std::string>& overrides = *arguments.overrides;
  ModelSource source;
  if (!checkpoint.empty()) source.checkpoint = choose_checkpoint(comm, checkpoint, stderr);
  switch (find_model_path(path).kind) {
    case ModelPathKind::missing:  // which the reader of run files refuses, unless it looks like a checkpoint
      if (step_of_folder(path.substr(path.find_last_of('/') + 1)) >= 0) choose_checkpoint(comm, path, stderr);
      [[fallthrough]];
    case ModelPathKind::file:
      source.run = read_run_file(path, overrides);
      if (checkpoint.empty()) source.checkpoint = choose_of_run(comm, source.run);
      break;
    case ModelPathKind::hf_folder: source.run = run_of_hf_folder(path, overrides); break;
    default: {
      const std::string found = choose_checkpoint(comm, path, checkpoint.empty() ? stderr : nullptr);
      source.run = read_stored_run(found, overrides);
      if (checkpoint.empty()) source.checkpoint = found;
    }
  }
  return source;
}

RunSpec inference_run(RunSpec run, int64_t ranks, int64_t sequences) {
  if (ranks == 1) {
    const int64_t ranks_per_node = run.mesh.ranks_per_node;
    run.mesh = {};
    run.mesh.ranks_per_node = ranks_per_node;
    run.moe.transport = "auto";
  }
  run.train.global_batch = sequences * std::max<int64_t>(1, ranks / (run.mesh.tp * run.mesh.pp));
  run.train.micro_batches = 1;
  run.train.batch_ramp.clear();
  run.mesh.shares.clear();
  run.processors.clear();
  run.moe.aux_loss_coef = run.moe.capacity_factor = 0;
  return run;
}

void load_model(Engine& engine, const ModelSource& source) {
  if (source.checkpoint.empty()) {
    import_hf_weights(engine, source.run.hf_dir);
    return;
  }
  const CheckpointIndex index = load_checkpoint(engine, source.checkpoint, true);
  const std::string warning = describe_other_model(index, source.run, engine.plan.model);
  if (engine.world.rank() == 0 && !warning.empty()) std::fprintf(stderr, "%s\n", warning.c_str());
}

}  // namespace mw
