// Checks of a run's checkpoint folder before training starts: locking, resuming, changed settings. To be called on one
// rank, before any checkpoint is written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/model_spec.h"
#include "config/run_spec.h"
#include "formats/io/output_lock.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {

// Errors: config, for checkpoint.resume = "auto" without checkpoint.dir; checkpoint, when a run that starts from
// scratch finds the checkpoints of another run.
void check_checkpoint_folder(const RunSpec& run);

// Detects errors of the first save early: creates the folder and locks it against other runs while the result lives.
// Null without checkpoint.dir. Errors: config, checkpoint.
std::unique_ptr<OutputLock> claim_checkpoint_folder(const RunSpec& run);

// The checkpoint to resume from: the one that checkpoint.resume names, or the newest of checkpoint.dir for "auto"; ""
// where there is none.
std::string folder_to_resume(const RunSpec& run);

// Folders of checkpoint.dir for checkpoints after `step` that were not written to the end, in no order.
std::vector<std::string> find_unfinished(const RunSpec& run, int64_t step);

// Refuses to resume from `step` of `folder` when checkpoint.dir contains later steps: retention would delete the
// abandoned branch piece by piece, and the next checkpoint.resume = "auto" would resume from it. Errors: checkpoint.
void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder);

// Log lines when `run` resumes from a checkpoint of the run `run_toml`: the keys that changed, except those that only
// select output files; with warnings for changes that alter the order of samples already counted, or make the weights
// those of another model. data_change: as describe_data_change tells it. Empty when nothing changed.
std::vector<std::string> describe_changes(const std::string& run_toml, const RunSpec& run,
                                          const std::string& data_change = "");
// All that changed since the checkpoint of `index`, as lines of the log: the keys of `run`, its data of `data_tokens`
// and the model of a Hugging Face folder.
std::vector<std::string> describe_changes_since(const CheckpointIndex& index, const RunSpec& run,
                                                const ModelSpec& model, const std::vector<int64_t>& data_tokens);
// What to say where the sources of data no longer have the tokens that a checkpoint knows of; "" where they do, or
// where it knows nothing.
std::string describe_data_change(const std::vector<int64_t>& then, const std::vector<int64_t>& now);

// What a checkpoint keeps of the model of a run: of a Hugging Face folder, whose config.json may change later, the
// model as write_hf_config writes it; otherwise "", as the run file has it.
std::string hf_config_of(const RunSpec& run, const ModelSpec& model);
// A warning where the Hugging Face folder of `run` describes another model than the checkpoint's; else "".
std::string describe_other_model(const CheckpointIndex& index, const RunSpec& run, const ModelSpec& model);
// Whether the model of a Hugging Face folder is another one than `hf_config` of a checkpoint says. False where that is
// empty.
bool is_other_model(const std::string& hf_config, const ModelSpec& model);

// The model keys that differ from those of the run `run_toml`; empty where it cannot be parsed.
std::vector<KeyChange> find_model_changes(const std::string& run_toml, const RunSpec& run);

// Whether `folder`, a complete checkpoint, is in checkpoint.dir.
bool holds_checkpoint(const RunSpec& run, const std::string& folder);

}  // namespace mw
