#include "train/loop/dry_run.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "config/batch_ramp.h"
#include "formats/io/json_lines.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/data/data.h"
#include "train/loop/run_before.h"
#include "train/loop/run_text.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* key, Exit code, const std::string& problem) {
  fail(code, fmt::format("{}: cannot write {}", key, problem),
       fmt::format("set {} to a place that can be written to", key));
}

// The nearest of `folder` and those above it that exists must be a folder that can be written into.
void check_can_make(const char* key, const fs::path& folder, Exit code) {
  std::error_code error;
  fs::path at = fs::absolute(folder, error);
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  const bool is_folder = fs::is_directory(at, error);
  if (is_folder && ::access(at.c_str(), W_OK | X_OK) == 0) return;
  refuse(key, code,
         fmt::format("into {}: {}", folder.string(),
                     is_folder ? fmt::format("{} ({})", std::strerror(errno), at.string())
                               : fmt::format("{} is not a folder", at.string())));
}

void check_no_folder(const char* key, const std::string& file) {
  std::error_code error;
  if (file.ends_with('/') || fs::is_directory(file, error)) refuse(key, Exit::data, file + ": it is a folder");
}

void check_content(const char* key, const std::string& file) {
  try {
    check_lines(file);
  } catch (const Error& error) {
    fail(error.code(), fmt::format("{} = \"{}\": {}", key, file, error.what()), error.hint());
  }
}

// Lines of an earlier run are renamed where a run begins (set_lines_aside), and continued where one resumes.
void check_metrics(const char* key, const std::string& file, bool resumes) {
  check_no_folder(key, file);
  std::error_code error;
  const fs::path path = fs::absolute(file, error);
  if (::access(path.c_str(), R_OK) == 0) check_content(key, file);
  const bool is_renamed = !resumes && fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
  if (is_renamed || !fs::exists(path, error)) return check_can_make(key, path.parent_path(), Exit::data);
  if (::access(path.c_str(), W_OK) != 0) refuse(key, Exit::data, fmt::format("{}: {}", file, std::strerror(errno)));
}

std::string describe_weights(const StartCheck& start, const Plan& plan) {
  if (!start.resumed.empty())
    return fmt::format("resumed from {} after step {}, {} samples", start.resumed, start.state.step,
                       start.state.samples);
  if (!plan.run.hf_dir.empty()) return fmt::format("of the Hugging Face folder {}", plan.run.hf_dir);
  return fmt::format("drawn at random, train.seed = {}", plan.run.train.seed);
}

std::string describe_disk(const CheckpointSpec& checkpoint, const DiskNeed& disk) {
  if (checkpoint.dir.empty()) return "none: checkpoint.dir is empty";
  return fmt::format("{} in {}: up to {} more of {} at a time, {} in all; {} free",
                     checkpoint.every > 0 ? fmt::format("every {} steps", checkpoint.every) : "one at the end",
                     checkpoint.dir, disk.checkpoints, format_bytes(disk.each), format_bytes(disk.bytes()),
                     disk.free ? format_bytes(*disk.free) : "an unknown amount is");
}

}  // namespace

void check_outputs(const RunSpec& run) {
  refuse_outputs_in_text(run);
  if (!run.checkpoint.dir.empty()) check_can_make("checkpoint.dir", run.checkpoint.dir, Exit::checkpoint);
  if (!run.log.tensorboard.empty()) check_can_make("log.tensorboard", run.log.tensorboard, Exit::data);
  if (const std::string metrics = metrics_file(run); !metrics.empty())
    check_metrics("log.jsonl", metrics, resumes(run));
  // Of a trace only the folder: where its file cannot be written, the run goes on without.
  if (const std::string& trace = run.log.trace; !trace.empty()) {
    check_no_folder("log.trace", trace);
    check_can_make("log.trace", fs::absolute(trace).parent_path(), Exit::data);
  }
}

StartCheck check_start(const Plan& plan, const std::vector<int64_t>& data_tokens) {
  StartCheck start;
  start.resumed = folder_to_resume(plan.run);
  if (!start.resumed.empty()) {
    const CheckpointReader reader(start.resumed);
    reader.check_files();
    reader.check_tensors(plan.params, reader.needs_moments(), plan.run);
    start.state = reader.index().state;
    start.changes = describe_changes_since(reader.index(), plan.run, plan.model, data_tokens);
    refuse_newer_checkpoints(plan.run, start.state.step, start.resumed);
  }
  start.disk = checkpoint_need(plan, start.state.step);
  if (start.state.step < plan.run.train.steps) check_disk(plan.run.checkpoint, start.disk);
  return start;
}

std::vector<std::string> describe(const StartCheck& start, const Plan& plan, int64_t needed, int64_t available) {
  const TrainSpec& train = plan.run.train;
  const int64_t done = start.state.step;
  std::vector<std::string> lines = {"dry run: every check before the first step passed, and nothing was written"};
  lines.push_back(done >= train.steps ? fmt::format("  steps: none are left of train.steps = {}", train.steps)
                                      : fmt::format("  steps: {} to {}, {} of {} tokens each, {} tokens in all",
                                                    done + 1, train.steps, describe_batch(train), train.seq_len,
                                                    format_count(samples_of_steps(train, done, train.steps) *
                                                                 static_cast<double>(train.seq_len))));
  lines.push_back("  optimizer: " + describe_optimizer(train));
  lines.push_back(fmt::format("  memory: the largest rank needs {}; the smallest share of free memory is {}",
                              format_bytes(needed), format_bytes(available)));
  lines.push_back("  weights: " + describe_weights(start, plan));
  lines.push_back("  checkpoints: " + describe_disk(plan.run.checkpoint, start.disk));
  return lines;
}

}  // namespace mw
