#include "train/checkpoint/checkpoint_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "base/file.h"
#include "base/text.h"
#include "comm/watchdog/watchdog.h"
#include "formats/io/checksum.h"
#include "layout/state_map.h"
#include "train/checkpoint/disk_need.h"
#include "train/checkpoint/placement_record.h"

namespace mw {

namespace fs = std::filesystem;

std::string checkpoint_folder(const std::string& dir, int64_t step) { return fmt::format("{}/step-{:08}", dir, step); }

std::string rank_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string slice_key(const std::string& tensor, const TensorSlice& part) {
  return fmt::format("{}@{}+{}", tensor, part.begin, part.first);
}

std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part) {
  if (part.size != box_elements(global_shape, part)) return {part.size};
  global_shape[static_cast<size_t>(part.axis)] = part.count;
  return global_shape;
}

namespace {

// Removes what lies in a folder and is to go by its name. There may be a file of each rank: each is noted as progress.
void remove_files(Comm& world, const fs::path& folder, const std::function<bool(const std::string& name)>& goes) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (goes(it->path().filename().string())) files.push_back(it->path());
  for (const fs::path& file : files) {
    note_work(world, "remove_file");
    fs::remove(file, error);
  }
}

// What ranks and index left in the folder of a checkpoint; other files stay, and the folder with them.
void remove_parts(Comm& world, const fs::path& folder) {
  remove_files(world, folder, [](const std::string& name) {
    return name.starts_with("rank-") || name.starts_with("index.json") || name.starts_with("DONE");
  });
}

}  // namespace

std::unique_ptr<OutputLock> lock_checkpoints(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error || ::access(dir.c_str(), W_OK) != 0)
    fail(Exit::checkpoint, fmt::format("cannot write into {}: {}", dir, error ? error.message() : std::strerror(errno)),
         "check that folder and its permissions");
  const std::string path = dir + "/writer.lock";
  const auto say = [](const std::string& text) { std::fputs(("moewright: " + text + "\n").c_str(), stderr); };
  const auto take = [&](int seconds) {
    auto lock = std::make_unique<OutputLock>(path, std::chrono::seconds(seconds));
    if (!lock->is_held())
      say(fmt::format("warning: the file system of {} takes no locks: nothing keeps another run from it", dir));
    return lock;
  };
  try {
    try {
      return take(0);
    } catch (const LockHeld& held) {
      say(fmt::format("{}; waiting ten seconds for it", held.what()));
    }
    try {
      return take(10);
    } catch (const LockHeld& held) {
      if (!is_held_elsewhere(path)) throw;
      // A network file system keeps the locks of a node that broke down for a while.
      say(fmt::format("{}; waiting two minutes for it", held.what()));
    }
    return take(110);
  } catch (const Error& refused) {
    fail(Exit::checkpoint, refused.what(), refused.hint());
  }
}

void remove_checkpoint(Comm& world, const std::string& folder) {
  std::error_code error;
  fs::remove(folder + "/DONE", error);
  remove_files(world, folder, [](const std::string&) { return true; });
  fs::remove_all(folder, error);
}

void remove_checkpoint_parts(Comm& world, const std::string& folder) {
  std::error_code error;
  fs::remove(folder + "/DONE", error);
  remove_parts(world, folder);
  fs::remove(folder, error);  // if it is empty
}

void remove_incomplete_checkpoints(Comm& world, const std::string& dir, int64_t step) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const int64_t other = step_of_folder(it->path().filename().string());
    std::error_code unreadable;
    if (other >= 0 && other < step && !fs::exists(it->path() / "DONE", unreadable) && !unreadable)
      folders.push_back(it->path());
  }
  for (const fs::path& folder : folders) remove_checkpoint_parts(world, folder.native());
}

void prepare_checkpoint_folder(Comm& world, const std::string& dir, const std::string& folder, int64_t bytes) {
  std::error_code error;
  fs::remove(folder + "/DONE", error);  // a rewritten checkpoint is incomplete until it is done again
  remove_parts(world, folder);
  // Before the folder is made: nothing of a checkpoint that cannot be written stays.
  if (const std::optional<int64_t> free = free_disk_bytes(dir); free && *free < bytes) {
    fs::remove(folder, error);  // one that was there before, if it is empty now
    fail(Exit::checkpoint,
         fmt::format("{} has {} free, a checkpoint may need {}", dir, format_bytes(*free), format_bytes(bytes)),
         "free space: older checkpoints go only when the new one is complete, so remove step-* folders by hand, or "
         "set checkpoint.dir to a larger disk");
  }
  fs::create_directories(folder, error);
  if (error)
    fail(Exit::checkpoint, fmt::format("cannot create {}: {}", folder, error.message()),
         "check that folder and its permissions");
}

nlohmann::json slice_entry(const CheckpointSlice& slice) {
  return {{"tensor", slice.tensor},    {"axis", slice.part.axis},   {"begin", slice.part.begin},
          {"count", slice.part.count}, {"first", slice.part.first}, {"size", slice.part.size},
          {"file", slice.file},        {"key", slice.key},          {"xxh3", slice.checksum}};
}

nlohmann::json gather_entries(Comm& world, const nlohmann::json& own) {
  constexpr size_t kRow = 256;  // bytes: messages count rows in 32 bits
  std::string text = own.dump();
  text.resize((text.size() + kRow - 1) / kRow * kRow, ' ');
  const auto ranks = static_cast<size_t>(world.size());
  std::vector<int64_t> rows(ranks);
  rows[static_cast<size_t>(world.rank())] = static_cast<int64_t>(text.size() / kRow);
  world.all_reduce_sum(std::span(rows));
  RowExchange x;
  x.row_bytes = kRow;
  x.send = text.data();
  x.send_counts.resize(ranks);
  x.send_offsets.resize(ranks);
  x.send_counts[0] = rows[static_cast<size_t>(world.rank())];
  x.receive_counts = world.rank() == 0 ? rows : std::vector<int64_t>(ranks);
  x.receive_offsets.resize(ranks);
  std::exclusive_scan(x.receive_counts.begin(), x.receive_counts.end(), x.receive_offsets.begin(), int64_t{0});
  std::string texts(static_cast<size_t>(x.receive_offsets.back() + x.receive_counts.back()) * kRow, ' ');
  x.receive = texts.data();
  world.all_to_all(x)->wait();
  nlohmann::json all = nlohmann::json::array();
  for (size_t rank = 0; rank < ranks && world.rank() == 0; ++rank) {
    const auto part = std::string_view(texts).substr(static_cast<size_t>(x.receive_offsets[rank]) * kRow,
                                                     static_cast<size_t>(x.receive_counts[rank]) * kRow);
    for (nlohmann::json& slice : nlohmann::json::parse(part)) all.push_back(std::move(slice));
  }
  return all;
}

void complete_checkpoint(const std::string& folder, const CheckpointContents& contents,
                         const std::vector<ParamRow>& rows, const nlohmann::json& slices, size_t limit) {
  nlohmann::json index = {{"format", "moewright-checkpoint"},
                          {"version", 2},
                          {"step", contents.state.step},
                          {"samples", contents.state.samples}};
  if (contents.state.loss) index["loss"] = *contents.state.loss;
  if (contents.state.skipped > 0) index["skipped"] = contents.state.skipped;
  if (const StepHistory& history = contents.state.history; !history.losses.empty())
    index["history"] = {{"losses", history.losses}, {"norms", history.norms}};
  if (!contents.state.data_tokens.empty()) index["data_tokens"] = contents.state.data_tokens;
  index["run"] = contents.run_toml;
  if (!contents.hf_config.empty()) index["hf_config"] = contents.hf_config;
  if (contents.placements != nullptr) index["placement"] = placement_record(*contents.placements);
  for (const ParamRow& row : rows) {
    for (const StateKind kind : kStateKinds)
      if (has_state(kind, row) && (contents.has_moments || kind == StateKind::param))
        index["tensors"][state_name(kind, row)] = row.shape;
  }
  index["slices"] = slices;
  const std::string text = index.dump() + "\n";
  if (text.size() > limit)
    fail(Exit::checkpoint,
         fmt::format("{}/index.json: {} slices take {}, but at most {} are read", folder, slices.size(),
                     format_bytes(static_cast<int64_t>(text.size())), format_bytes(static_cast<int64_t>(limit))),
         "older checkpoints stay; a layout in which fewer ranks share a tensor has fewer slices: lower mesh.tp or "
         "mesh.ep, "
         "or set mesh.zero = 0");
  parse_checkpoint_index(text, folder + "/index.json");  // what is written must load: coverage is proven before DONE
  write_text_file_atomically(folder + "/index.json", text);
  write_text_file_atomically(folder + "/DONE", xxh3_hex(std::as_bytes(std::span(text))) + "\n");
}

}  // namespace mw
