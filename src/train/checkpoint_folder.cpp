#include "train/checkpoint_folder.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "train/checkpoint.h"

namespace mw {

void check_checkpoint_folder(const RunSpec& run) {
  const std::string& dir = run.checkpoint.dir;
  if (dir.empty()) {
    if (run.checkpoint.resume == "auto")
      fail(Exit::config, "checkpoint.resume = \"auto\" needs checkpoint.dir", "name the folder of checkpoints");
    return;
  }
  const std::string found = newest_checkpoint(dir);
  if (run.checkpoint.resume == "none" && !found.empty())
    fail(Exit::checkpoint, fmt::format("{} exists, and checkpoint.resume = \"none\" starts anew", found),
         "checkpoint.resume=auto goes on from it; a new run needs another checkpoint.dir, or the old one removed");
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error || ::access(dir.c_str(), W_OK) != 0)
    fail(Exit::checkpoint, fmt::format("cannot write into {}: {}", dir, error ? error.message() : std::strerror(errno)),
         "check checkpoint.dir and its permissions");
}

void refuse_newer_checkpoints(const RunSpec& run, int64_t step, const std::string& folder) {
  if (run.checkpoint.dir.empty()) return;
  std::vector<std::string> newer;
  for (const std::string& other : list_checkpoints(run.checkpoint.dir)) {
    const std::string name = std::filesystem::path(other).filename().string();
    if (step_of_folder(name) > step) newer.push_back(name);
  }
  if (newer.empty()) return;
  fail(Exit::checkpoint,
       fmt::format("checkpoint.resume goes back to step {} ({}), but {} holds newer checkpoints: {}", step, folder,
                   run.checkpoint.dir, fmt::join(newer, ", ")),
       "give the new branch another checkpoint.dir, or move the newer ones away; checkpoint.resume=auto goes on from "
       "the newest");
}

bool holds_checkpoint(const RunSpec& run, int64_t step) {
  if (run.checkpoint.dir.empty()) return false;
  const std::vector<std::string> complete = list_checkpoints(run.checkpoint.dir);
  return std::any_of(complete.begin(), complete.end(), [&](const std::string& folder) {
    return step_of_folder(std::filesystem::path(folder).filename().string()) == step;
  });
}

}  // namespace mw
