#include <algorithm>
#include <cstdio>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
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

// One prompt per line; empty lines are empty prompts. As rank 0 reads them.
std::vector<std::string> read_prompts(Comm& comm, const std::string& path) {
  const std::string text = broadcast_text(comm, comm.rank() == 0 ? read_text_file(path) : "", 0);
  std::vector<std::string> prompts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) prompts.push_back(line);
  if (prompts.empty())
    fail(Exit::data, fmt::format("{} holds no prompts: it is empty", path), "write one prompt on each line");
  return prompts;
}

// Each data-parallel rank generates all texts: the training batch must not size its memory, nor the layout of the
// training a process that runs alone. No token is dropped, whatever else is computed with it.
RunSpec sampling_run(RunSpec run, int64_t ranks, int64_t prompts) {
  if (ranks == 1) {
    const int64_t ranks_per_node = run.mesh.ranks_per_node;
    run.mesh = {};
    run.mesh.ranks_per_node = ranks_per_node;
    run.moe.transport = "auto";
  }
  run.train.global_batch = prompts * std::max<int64_t>(1, ranks / (run.mesh.tp * run.mesh.pp));
  run.train.micro_batches = 1;
  run.mesh.shares.clear();
  run.moe.aux_loss_coef = run.moe.capacity_factor = 0;
  run.sample.sequences = prompts;
  if (run.sample.tokens == 0) run.sample.tokens = 256;
  if (prompts > 1) run.data.document_mask = true;  // shorter prompts are padded
  return run;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Prints the prompt and what the model goes on with, as it comes; of the prompts of a file, one JSON object per line.
Exit run_sample(World& world, const SampleSource& source, const std::string& prompts_file) {
  std::vector<std::string> prompts = {source.run.sample.prompt};
  if (!prompts_file.empty()) prompts = read_prompts(world.comm(), prompts_file);
  const RunSpec run = sampling_run(source.run, world.comm().size(), std::ssize(prompts));
  const ModelSpec model = load_model_spec(run);
  const bool leader = world.comm().rank() == 0;
  const std::unique_ptr<Tokenizer> tokenizer = leader ? open_run_tokenizer(run, model) : nullptr;
  const std::unique_ptr<Engine> owner = make_engine(world, run);
  Engine& engine = *owner;
  if (source.checkpoint.empty()) import_hf_weights(engine, run.hf_dir);
  else load_checkpoint(engine, source.checkpoint, true);
  if (prompts_file.empty()) {
    if (leader) print(prompts.front());
    generate(engine, tokenizer.get(), run.sample, prompts, [](size_t, std::string_view piece) { print(piece); });
    if (leader) print("\n");
    return Exit::ok;
  }
  std::vector<std::string> texts(prompts.size());
  const std::vector<GeneratedText> generated =
      generate(engine, tokenizer.get(), run.sample, prompts,
               [&](size_t prompt, std::string_view piece) { texts[prompt] += piece; });
  for (size_t b = 0; leader && b < prompts.size(); ++b) {
    const nlohmann::ordered_json line = {
        {"prompt", prompts[b]}, {"text", texts[b]}, {"tokens", generated[b].tokens}, {"ended", generated[b].ended}};
    print(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  return Exit::ok;
}

}  // namespace

Command add_sample_command(CommandLine& line, const Invocation& invocation) {
  Subcommand sub = line.add_command("sample", "continue a prompt with a trained model");
  auto path = std::make_shared<std::string>(), checkpoint = std::make_shared<std::string>(),
       prompts = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  sub.add_option("MODEL", *path, "run folder, checkpoint, run file or Hugging Face model folder").required();
  sub.add_option("OVERRIDES", *overrides, "key=value, for example sample.prompt=\"int main(\" sample.tokens=200");
  sub.add_option(
      "--checkpoint", *checkpoint,
      "checkpoint or run folder with the weights; default: the weights of MODEL, or for a run file the newest "
      "checkpoint in checkpoint.dir");
  sub.add_option(
      "--prompts", *prompts,
      "file with one prompt per line, which are continued together, in place of sample.prompt; prints one JSON "
      "object per line");
  return {sub, [=] {
            return run_in_world(invocation, [&](World& world) {
              const SampleSource source = find_source(world.comm(), *path, *checkpoint, *overrides);
              return run_watched(world, source.run.watchdog.seconds,
                                 [&] { return run_sample(world, source, *prompts); });
            });
          }};
}

}  // namespace mw
