#include "train/checkpoint/model_path.h"

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhatToName = "name a run folder, which holds step-... folders, or one of its checkpoints";

bool has_file(const std::string& folder, const char* name) {
  return path_exists(fmt::format("{}/{}", folder, name), Exit::checkpoint);
}

bool is_folder(const fs::path& path) {
  std::error_code unreadable;
  return fs::is_directory(path, unreadable);
}

// The first subfolder by name for which `wanted` is true; "" if there is none.
template <class Wanted>
std::string find_subfolder(const std::string& folder, Wanted wanted) {
  std::string found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (is_folder(it->path()) && wanted(path) && (found.empty() || path < found)) found = path;
  }
  return found;
}

bool has_checkpoint_name(const std::string& path) { return step_of_folder(fs::path(path).filename().string()) >= 0; }

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

ModelPathKind kind_of_folder(const ModelPath& found) {
  const std::string& path = found.path;
  if (has_file(path, "DONE")) return ModelPathKind::checkpoint;
  if (has_checkpoint_name(path) || has_file(path, "rank-00000.safetensors")) return ModelPathKind::unfinished;
  if (found.checkpoints > 0) return ModelPathKind::run;
  if (has_file(path, "config.json")) return ModelPathKind::hf_folder;
  const bool is_run = has_file(path, "writer.lock") || has_file(path, "metrics.jsonl") ||
                      !find_subfolder(path, has_checkpoint_name).empty();
  return is_run ? ModelPathKind::empty_run : ModelPathKind::other_folder;
}

std::string offer(const std::string& checkpoint) {
  return fmt::format("the newest complete checkpoint there is {}", checkpoint);
}

}  // namespace

ModelPath find_model_path(const std::string& path) {
  ModelPath found;
  found.path = path;
  while (found.path.size() > 1 && found.path.back() == '/') found.path.pop_back();
  if (!path_exists(found.path, Exit::checkpoint)) {
    if (has_checkpoint_name(found.path)) found.checkpoint = newest_checkpoint(parent_of(found.path));
    return found;
  }
  if (!is_folder(found.path)) {
    found.kind = ModelPathKind::file;
    return found;
  }
  const std::vector<std::string> complete = list_checkpoints(found.path);
  found.checkpoints = std::ssize(complete);
  found.kind = kind_of_folder(found);
  if (found.kind == ModelPathKind::checkpoint) found.checkpoint = found.path;
  else if (found.kind == ModelPathKind::run) found.checkpoint = complete.back();
  else if (found.kind == ModelPathKind::unfinished) found.checkpoint = newest_checkpoint(parent_of(found.path));
  return found;
}

const std::string& require_checkpoint(const ModelPath& found) {
  const std::string& path = found.path;
  switch (found.kind) {
    case ModelPathKind::checkpoint:
    case ModelPathKind::run: return found.checkpoint;
    case ModelPathKind::unfinished:
      fail(Exit::checkpoint,
           fmt::format(
               "{} is an incomplete checkpoint: it has no DONE, because the run that wrote it did not finish it", path),
           found.checkpoint.empty() ? fmt::format("{} holds no complete checkpoint yet", parent_of(path))
                                    : offer(found.checkpoint));
    case ModelPathKind::empty_run:
      fail(Exit::checkpoint, fmt::format("{} is a run folder without a complete checkpoint", path),
           "a run writes one every checkpoint.every steps and when it ends");
    case ModelPathKind::hf_folder:
      fail(Exit::checkpoint, fmt::format("{} is a Hugging Face model folder, not a checkpoint", path),
           fmt::format("`moewright import {} DIR` makes a checkpoint of it; run files name it as model = \"hf:{}\"",
                       path, path));
    case ModelPathKind::other_folder: {
      const std::string run =
          find_subfolder(path, [](const auto& inner) { return !find_subfolder(inner, has_checkpoint_name).empty(); });
      fail(Exit::checkpoint,
           fmt::format("{} is neither a run folder (it holds no step-...), nor a checkpoint, nor a Hugging Face model "
                       "folder (it has no config.json)",
                       path),
           run.empty() ? kWhatToName : fmt::format("its folder {} is a run folder: name that one", run));
    }
    case ModelPathKind::file: fail(Exit::checkpoint, fmt::format("{} is a file, not a folder", path), kWhatToName);
    case ModelPathKind::missing:
      fail(Exit::checkpoint, fmt::format("{} does not exist", path),
           found.checkpoint.empty() ? kWhatToName : offer(found.checkpoint));
  }
  MW_CHECK(false, "path kind {}", static_cast<int>(found.kind));
}

std::string describe_choice(const ModelPath& found) {
  if (found.kind != ModelPathKind::run) return "";
  return found.checkpoints == 1
             ? fmt::format("using {}, the only complete checkpoint", found.checkpoint)
             : fmt::format("using {}, the newest of {} complete checkpoints", found.checkpoint, found.checkpoints);
}

}  // namespace mw
