#include "train/checkpoint/checkpoint_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "base/file.h"
#include "config/hf_config.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/model_path.h"

namespace mw {
namespace {

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code none_there;
  return std::filesystem::equivalent(a, b, none_there);
}

bool changes_training(const KeyChange& change) {
  const std::string section = change.key.substr(0, change.key.find('.'));
  return !is_one_of(section, {"checkpoint", "log", "watchdog", "sample", "verify", "plan", "debug"});
}

// Which tokens a sample has, or which sample is the n-th.
bool changes_samples(const KeyChange& change, const DataSpec& data) {
  const std::string none = "\"\"";
  if (change.key == "data.document_token") return data.whole_documents;
  if (change.key == "data.val_path") return (change.from == none) != (change.to == none);
  return is_one_of(change.key, {"data.kind", "data.path", "data.blend", "data.suffixes", "data.val_fraction",
                                "data.whole_documents", "train.seq_len", "train.seed"});
}

bool changes_model(const KeyChange& change) {
  return change.key.starts_with("model") && change.key != "model.init_std";
}

}  // namespace

void check_checkpoint_folder(const RunSpec& run) {
  const std::string& dir = run.checkpoint.dir;
  if (dir.empty() && run.checkpoint.resume == "auto")
    fail(Exit::config, "checkpoint.resume = \"auto\" needs checkpoint.dir", "name the folder of checkpoints");
  if (dir.empty() || run.checkpoint.resume != "none") return;
  if (const std::string found = newest_checkpoint(dir); !found.empty())
    fail(Exit::checkpoint, fmt::format("{} exists, but checkpoint.resume = \"none\" would start from scratch", found),
         "set checkpoint.resume=auto to continue, or choose another checkpoint.dir");
}

std::unique_ptr<OutputLock> claim_checkpoint_folder(const RunSpec& run) {
  std::unique_ptr<OutputLock> lock;
  if (!run.checkpoint.dir.empty()) lock = lock_checkpoints(run.checkpoint.dir);
  check_checkpoint_folder(run);
  return lock;
}

std::string folder_to_resume(const RunSpec& run) {
  const std::string& resume = run.checkpoint.resume;
  if (resume == "none") return "";
  if (resume == "auto") return newest_checkpoint(run.checkpoint.dir);
  const ModelPath found = find_model_path(resume);
  try {
    return require_checkpoint(found);
  } catch (const Error& error) {
    const bool is_missing = found.kind == ModelPathKind::missing && found.checkpoint.empty();
    fail(error.code(), fmt::format("checkpoint.resume: {}", error.what()),
         is_missing ? "use auto (the newest checkpoint of checkpoint.dir), none (start from scratch), or the path of a "
                      "checkpoint or run folder"
                    : error.hint());
  }
}

std::vector<std::string> find_unfinished(const RunSpec& run, int64_t step) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(run.checkpoint.dir, error), end; !error && it != end; it.increment(error))
    if (step_of_folder(it->path().filename().string()) > step && !path_exists((it->path() / "DONE").string()))
      found.push_back(it->path().string());
  return found;
}

void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder) {
  if (run.checkpoint.dir.empty()) return;
  std::vector<std::string> others;
  for (const std::string& other : list_checkpoints(run.checkpoint.dir)) {
    const std::string name = std::filesystem::path(other).filename().string();
    if (step_of_folder(name) >= step && !is_same_file(other, folder)) others.push_back(name);
  }
  if (others.empty()) return;
  fail(Exit::checkpoint,
       fmt::format("checkpoint.resume goes back to step {} ({}), but {} holds other checkpoints from there on: {}",
                   step, folder, run.checkpoint.dir, fmt::join(others, ", ")),
       "give the new branch another checkpoint.dir, or move the newer ones away; checkpoint.resume=auto goes on from "
       "the newest");
}

std::string describe_data_change(const std::vector<int64_t>& then, const std::vector<int64_t>& now) {
  if (then.empty() || then == now) return "";
  return fmt::format("the data ({} tokens, was {})", fmt::join(now, " + "), fmt::join(then, " + "));
}

std::vector<std::string> describe_changes(const std::string& run_toml, const RunSpec& run,
                                          const std::string& data_change) {
  std::vector<std::string> all, samples, model;
  try {
    for (const KeyChange& change : changed_keys(parse_run_text(run_toml, "the checkpoint's run", {}), run)) {
      if (!changes_training(change)) continue;
      all.push_back(fmt::format("{} = {} (was {})", change.key, change.to, change.from));
      if (changes_samples(change, run.data)) samples.push_back(change.key);
      if (changes_model(change)) model.push_back(change.key);
    }
  } catch (const Error& error) {
    return {
        fmt::format("warning: whether settings have changed since the checkpoint cannot be told: {}", error.what())};
  }
  if (samples.empty() && !data_change.empty()) samples.push_back(data_change);
  std::vector<std::string> lines;
  if (!all.empty()) lines.push_back(fmt::format("changed since the checkpoint: {}", fmt::join(all, ", ")));
  if (!samples.empty())
    lines.push_back(
        fmt::format("warning: {} changed: of the samples from here on, some were seen before the checkpoint "
                    "and some will never be",
                    fmt::join(samples, ", ")));
  if (!model.empty())
    lines.push_back(
        fmt::format("warning: {} changed: the weights were trained as another model", fmt::join(model, ", ")));
  return lines;
}

std::vector<std::string> describe_changes_since(const CheckpointIndex& index, const RunSpec& run,
                                                const ModelSpec& model, const std::vector<int64_t>& data_tokens) {
  std::vector<std::string> lines;
  if (index.state.samples > 0)
    lines = describe_changes(index.run_toml, run, describe_data_change(index.state.data_tokens, data_tokens));
  if (const std::string other = describe_other_model(index, run, model); !other.empty()) lines.push_back(other);
  return lines;
}

std::string describe_other_model(const CheckpointIndex& index, const RunSpec& run, const ModelSpec& model) {
  if (run.hf_dir.empty() || !is_other_model(index.hf_config, model)) return "";
  return fmt::format("warning: {}/config.json changed: the weights were trained as another model", run.hf_dir);
}

static std::string to_hf_config(const ModelSpec& model) { return write_hf_config(model, "float32"); }

std::string hf_config_of(const RunSpec& run, const ModelSpec& model) {
  return run.hf_dir.empty() ? "" : to_hf_config(model);
}

bool is_other_model(const std::string& hf_config, const ModelSpec& model) {
  if (hf_config.empty()) return false;
  const auto parse = [](const std::string& text) {
    ModelSpec parsed = parse_hf_config(text, "the checkpoint's hf_config");
    parsed.mtp_layers = 0;  // which nothing here trains
    return parsed;
  };
  return !(parse(hf_config) == parse(to_hf_config(model)));
}

std::vector<KeyChange> find_model_changes(const std::string& run_toml, const RunSpec& run) {
  try {
    std::vector<KeyChange> changes = changed_keys(parse_run_text(run_toml, "the checkpoint's run", {}), run);
    std::erase_if(changes, [](const KeyChange& change) {
      return !changes_model(change) && change.key != "train.optimizer" && change.key != "train.muon_router";
    });
    return changes;
  } catch (const Error&) {
    return {};
  }
}

bool holds_checkpoint(const RunSpec& run, const std::string& folder) {
  if (run.checkpoint.dir.empty()) return false;
  const std::vector<std::string> complete = list_checkpoints(run.checkpoint.dir);
  return std::any_of(complete.begin(), complete.end(),
                     [&](const std::string& other) { return is_same_file(other, folder); });
}

}  // namespace mw
