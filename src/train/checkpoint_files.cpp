#include "train/checkpoint_files.h"

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "formats/checksum.h"

namespace mw {

namespace fs = std::filesystem;

std::string checkpoint_folder(const std::string& dir, int64_t step) { return fmt::format("{}/step-{:08}", dir, step); }

std::string rank_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

void prepare_checkpoint_folder(const std::string& dir, const std::string& folder, int64_t bytes) {
  std::error_code error;
  fs::remove(folder + "/DONE", error);  // a rewritten checkpoint is incomplete until it is done again
  fs::create_directories(folder, error);
  if (error)
    fail(Exit::checkpoint, fmt::format("cannot create {}: {}", folder, error.message()),
         "check checkpoint.dir and its permissions");
  const fs::space_info space = fs::space(folder, error);
  if (!error && static_cast<int64_t>(space.available) < bytes)
    fail(Exit::checkpoint,
         fmt::format("{} has {} free, a checkpoint may need {}", dir,
                     format_bytes(static_cast<int64_t>(space.available)), format_bytes(bytes)),
         "free space: older checkpoints go only when the new one is complete, so remove step-* folders by hand, or "
         "set checkpoint.dir to a larger disk");
}

nlohmann::json slice_entry(const CheckpointSlice& slice) {
  return {{"tensor", slice.tensor},    {"axis", slice.part.axis},   {"begin", slice.part.begin},
          {"count", slice.part.count}, {"first", slice.part.first}, {"size", slice.part.size},
          {"file", slice.file},        {"key", slice.key},          {"xxh3", slice.checksum}};
}

nlohmann::json gather_entries(Comm& world, const nlohmann::json& own) {
  const std::string text = own.dump();
  nlohmann::json all = nlohmann::json::array();
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string part = broadcast_text(world, text, rank);
    if (world.rank() == 0)
      for (nlohmann::json& slice : nlohmann::json::parse(part)) all.push_back(std::move(slice));
  }
  return all;
}

void complete_checkpoint(const std::string& folder, const CheckpointContents& contents,
                         const std::vector<ParamRow>& rows, const nlohmann::json& slices) {
  nlohmann::json index = {{"format", "moewright-checkpoint"},
                          {"version", 2},
                          {"step", contents.state.step},
                          {"samples", contents.state.samples}};
  index["run"] = contents.run_toml;
  for (const ParamRow& row : rows) {
    index["tensors"]["param." + row.name] = row.shape;
    if (!row.trained || !contents.has_moments) continue;
    index["tensors"]["adam_m." + row.name] = row.shape;
    index["tensors"]["adam_v." + row.name] = row.shape;
  }
  index["slices"] = slices;
  const std::string text = index.dump(1) + "\n";
  parse_checkpoint_index(text, folder + "/index.json");  // what is written must load: coverage is proven before DONE
  write_text_file_atomically(folder + "/index.json", text);
  write_text_file_atomically(folder + "/DONE", xxh3_hex(std::as_bytes(std::span(text))) + "\n");
}

}  // namespace mw
