// The files of a run's data.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "formats/tokens/megatron.h"
#include "formats/tokens/text_corpus.h"
#include "formats/tokens/token_shard.h"
#include "train/data/data.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> training_paths(const DataSpec& data) {
  std::vector<std::string> paths;
  for (const BlendPart& part : parse_blend(data.blend)) paths.push_back(part.path);
  if (paths.empty()) paths.push_back(data.path);
  return paths;
}

// The files with the tokens of `path`, as open_token_source reads it.
std::vector<std::string> files_of(const DataSpec& data, const std::string& path) {
  std::vector<std::string> files;
  switch (data.kind) {
    case DataKind::text:
      for (TextFile& file : find_text_files(path, data.suffixes)) files.push_back(std::move(file.path));
      break;
    case DataKind::megatron: files = {megatron_prefix(path) + ".bin"}; break;
    case DataKind::shards: files = list_token_shards(path); break;
  }
  return files;
}

using FileId = std::pair<dev_t, ino_t>;  // the same for a file and for links to it

FileId id_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? FileId(info.st_dev, info.st_ino) : FileId();
}

// As TextCorpus searches `folder`: in depth, without hidden entries and links to folders.
bool is_searched(const fs::path& folder, const fs::path& file) {
  std::error_code error;
  const fs::path root = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (!fs::is_directory(root, error)) return false;
  const fs::path inside = fs::weakly_canonical(fs::absolute(file, error), error).lexically_relative(root);
  return !inside.empty() && std::none_of(inside.begin(), inside.end(),
                                         [](const fs::path& part) { return part.native().starts_with('.'); });
}

// The files of a run that its next start would find, as names in checkpoint.dir, and the metrics.
std::vector<std::pair<const char*, std::string>> written_files(const RunSpec& run) {
  std::vector<std::pair<const char*, std::string>> files;
  if (const std::string& dir = run.checkpoint.dir; !dir.empty())
    for (const char* name : {"index.json", "rank-00000.safetensors", "DONE"})
      files.emplace_back("checkpoint.dir", dir + "/step-00000001/" + name);
  if (const std::string metrics = metrics_file(run); !metrics.empty()) files.emplace_back("log.jsonl", metrics);
  return files;
}

std::string doubt_about_name(const std::string& path) {
  for (const char* suffix : {".gz", ".zst", ".xz", ".bz2", ".zip", ".parquet", ".arrow", ".bin", ".idx", ".npy",
                             ".json", ".jsonl", ".ndjson"})
    if (path.ends_with(suffix))
      return fmt::format(
          "warning: {} is no plain text by its name, and data.kind = \"text\" takes its bytes as they are; `moewright "
          "tokenize` reads JSON lines, and .gz and .zst",
          path);
  return "";
}

bool holds_nul(const std::string& path) {
  std::array<char, 4096> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  const auto end = begin.begin() + file.gcount();
  return std::find(begin.begin(), end, '\0') != end;
}

// Of the files at `path`, by their first bytes.
std::string doubt_about_bytes(const DataSpec& data, const std::string& path, const OpeningRanks& ranks) {
  try {
    const std::vector<std::string> files = files_of(data, path);
    std::vector<std::string> binary;
    for (const std::string& file : files) {
      ranks.note_progress();
      if (holds_nul(file)) binary.push_back(file);
    }
    if (binary.empty()) return "";
    const std::string count = files.size() == 1 ? ""
                                                : fmt::format(" ({} of {} at {})", binary.size(),
                                                              counted(std::ssize(files), "file"), printable(path));
    return fmt::format(
        "warning: {} holds NUL bytes, as binary files and UTF-16 do{}, and data.kind = \"text\" takes its bytes as "
        "they are; select text by data.suffixes, move other files away, or save UTF-16 as UTF-8",
        binary.front(), count);
  } catch (const Error&) {
    return "";  // a folder that changed since the data was opened
  }
}

// What is held out of the text at `path`, in files and in bytes.
struct HeldOut {
  int64_t files = 0, of_files = 0;
  double share = 0;
};

HeldOut find_held_out(const DataSpec& data, const std::string& path) {
  const std::vector<TextFile> files = find_text_files(path, data.suffixes);
  std::vector<std::string> names;
  for (const TextFile& file : files) names.push_back(file.name);
  const std::vector<bool> is_held_out = choose_held_out(names, data.val_fraction);
  HeldOut found{.of_files = std::ssize(files)};
  double bytes = 0, all_bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto size = static_cast<double>(files[i].size);
    all_bytes += size;
    if (!is_held_out[i]) continue;
    ++found.files;
    bytes += size;
  }
  found.share = bytes / all_bytes;
  return found;
}

}  // namespace

std::string doubt_about_text(const RunSpec& run, const OpeningRanks& ranks) {
  if (run.data.kind != DataKind::text) return "";
  std::vector<std::string> paths = training_paths(run.data);
  if (!run.data.val_path.empty()) paths.push_back(run.data.val_path);
  for (const std::string& path : paths)
    if (std::string doubt = doubt_about_name(path); !doubt.empty()) return doubt;
  for (const std::string& path : paths)
    if (std::string doubt = doubt_about_bytes(run.data, path, ranks); !doubt.empty()) return doubt;
  return "";
}

void refuse_outputs_in_text(const RunSpec& run) {
  if (run.data.kind != DataKind::text) return;
  std::vector<std::pair<const char*, std::string>> folders;
  for (const std::string& path : training_paths(run.data))
    folders.emplace_back(run.data.blend.empty() ? "data.path" : "data.blend", path);
  folders.emplace_back("data.val_path", run.data.val_path);
  for (const auto& [key, folder] : folders)
    for (const auto& [output, file] : written_files(run)) {
      const std::string name = fs::path(file).filename().native();
      if (folder.empty() || !selects_name(run.data.suffixes, name) || !is_searched(folder, file)) continue;
      fail(Exit::config,
           fmt::format("{} would write {} into {} = \"{}\", and the next start would read it as text", output,
                       printable(file), key, printable(folder)),
           fmt::format("set {} to a place outside that folder, or data.suffixes to those of your text", output));
    }
}

std::string find_loss_mask(const RunSpec& run) {
  if (run.data.kind != DataKind::megatron) return "";
  for (const std::string& path : training_paths(run.data))
    if (const std::string mask = megatron_prefix(path) + ".mask"; path_exists(mask)) return mask;
  return "";
}

std::string doubt_about_split(const RunSpec& run) {
  constexpr double kFar = 2;  // times more or less than asked
  const DataSpec& data = run.data;
  if (data.kind != DataKind::text || !data.val_path.empty() || data.val_fraction == 0) return "";
  try {
    for (const std::string& path : training_paths(data)) {
      const HeldOut held_out = find_held_out(data, path);
      const bool is_near = held_out.share <= kFar * data.val_fraction && data.val_fraction <= kFar * held_out.share;
      if (held_out.of_files == 1 || is_near) continue;  // one file is split at any byte
      return fmt::format(
          "warning: data.val_fraction = {:g} asks for {:.3g} % of {} = \"{}\", but whole files are held out: {} of {}, "
          "with {:.3g} % of the bytes; name validation text in data.val_path, or divide the text into more and smaller "
          "files",
          data.val_fraction, 100 * data.val_fraction, data.blend.empty() ? "data.path" : "data.blend", printable(path),
          held_out.files, counted(held_out.of_files, "file"), 100 * held_out.share);
    }
  } catch (const Error&) {  // a folder that changed since the data was opened
  }
  return "";
}

std::string doubt_about_validation(const RunSpec& run) {
  const DataSpec& data = run.data;
  if (data.val_path.empty()) return "";
  try {
    std::set<FileId> trained;
    for (const std::string& path : training_paths(data))
      for (const std::string& file : files_of(data, path)) trained.insert(id_of(file));
    trained.erase(FileId());  // gone since the data was opened
    const std::vector<std::string> held_out = files_of(data, data.val_path);
    std::vector<std::string> shared;
    for (const std::string& file : held_out)
      if (trained.count(id_of(file)) > 0) shared.push_back(file);
    if (shared.empty()) return "";
    return fmt::format(
        "warning: {} of {} files of data.val_path = \"{}\" are training data, too ({}{}): the run trains on what it "
        "validates with; keep them in a folder of their own, or let a pattern or another path name the training files",
        shared.size(), held_out.size(), printable(data.val_path), shared.front(), shared.size() > 1 ? ", ..." : "");
  } catch (const Error&) {
    return "";  // a folder that changed since the data was opened
  }
}

}  // namespace mw
