// Commands of the full build: those that compute.
#pragma once

#include <cstdio>

#include "cli/commands.h"
#include "comm/world.h"
#include "config/run_spec.h"
#include "engine/engine.h"

namespace mw {

Command add_train_command(CommandLine& line, const Invocation& invocation);
Command add_verify_command(CommandLine& line, const Invocation& invocation);
Command add_parity_command(CommandLine& line, const Invocation& invocation);
Command add_sample_command(CommandLine& line, const Invocation& invocation);
Command add_chat_command(CommandLine& line, const Invocation& invocation);
Command add_evaluate_command(CommandLine& line, const Invocation& invocation);
Command add_import_command(CommandLine& line, const Invocation& invocation);
Command add_export_command(CommandLine& line, const Invocation& invocation);
Command add_tokenize_command(CommandLine& line);
Command add_inspect_command(CommandLine& line);
Command add_finished_command(CommandLine& line);
Command add_report_command(CommandLine& line);
Command add_doctor_command(CommandLine& line, const Invocation& invocation);
Command add_probe_command(CommandLine& line, const Invocation& invocation);

// Starts the message library and runs `body` on every rank. A failing rank writes its reason first and takes the others
// down.
Exit run_in_world(const Invocation& invocation, const std::function<Exit(World&)>& body);

// Runs `body` on every rank of the world under the watchdog (`seconds` as in start_watchdog). Collective.
Exit run_watched(World& world, int64_t seconds, const std::function<Exit()>& body);

// The complete checkpoint that `path` stands for, as rank 0 finds it: a run that trains may write a newer one
// meanwhile. Rank 0 prints to `out`, unless null, which one it takes of a run folder. Collective. Errors: as
// require_checkpoint.
std::string choose_checkpoint(Comm& comm, const std::string& path, std::FILE* out);

// The arguments MODEL, OVERRIDES and --checkpoint of commands that compute with a trained model.
struct ModelArguments {
  std::shared_ptr<std::string> path = std::make_shared<std::string>(), checkpoint = std::make_shared<std::string>();
  std::shared_ptr<std::vector<std::string>> overrides = std::make_shared<std::vector<std::string>>();
};
ModelArguments add_model_arguments(Subcommand& sub, const char* example);

// Where a model and its settings come from.
struct ModelSource {
  RunSpec run;
  std::string checkpoint;  // "": the weights of run.hf_dir
};
// Collective. Errors: config, checkpoint.
ModelSource find_model(Comm& comm, const ModelArguments& arguments);
// Collective over the world.
void load_model(Engine& engine, const ModelSource& source);

// The run with `sequences` on each data-parallel rank at a time: its training batch must not size the memory, nor its
// layout a process that is alone. No token is dropped, whatever else is computed with it.
RunSpec inference_run(RunSpec run, int64_t ranks, int64_t sequences);

// --watchdog, of commands without a run file: the seconds for run_watched.
std::shared_ptr<int64_t> add_watchdog_option(Subcommand& sub);

}  // namespace mw
