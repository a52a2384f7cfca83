#include "train/checkpoint/checkpoint_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "engine/state_slices.h"
#include "formats/io/checksum.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/checkpoint_folder.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// Complete checkpoints beside `folder`, for a hint. Beside one of another name any is older.
std::string offer_older(const std::string& folder) {
  fs::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  const std::string parent = path.parent_path().string();
  const int64_t refused = step_of_folder(path.filename().string());
  std::vector<std::string> all;
  try {
    all = list_checkpoints(parent.empty() ? "." : parent);
  } catch (const Error& error) {
    return fmt::format("what else is there cannot be told: {}", error.what());
  }
  for (auto it = all.rbegin(); it != all.rend(); ++it)
    if (refused < 0 || step_of_folder(fs::path(*it).filename().string()) < refused)
      return fmt::format("move {} away and take the one before it, {} (train: checkpoint.resume={})", path.string(),
                         *it, *it);
  return "there is no older complete checkpoint beside it (train: checkpoint.resume=none starts from scratch)";
}

// What `body` gives; errors of its files become errors of the checkpoint.
template <class Body>
auto read_or_refuse(const std::string& folder, Body body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != Exit::checkpoint && error.code() != Exit::data) throw;
    fail(Exit::checkpoint, fmt::format("checkpoint {} is refused: {}", folder, error.what()), offer_older(folder));
  }
}

// Why a checkpoint's tensors may be others than those of `run`.
std::string explain_other_model(const std::string& run_toml, const RunSpec& run) {
  std::vector<std::string> changes;
  for (const KeyChange& change : find_model_changes(run_toml, run))
    changes.push_back(fmt::format("{} was {} in the checkpoint, is {} now", change.key, change.from, change.to));
  if (changes.empty()) return "the checkpoint belongs to another model";
  return fmt::format("{}; set it back, or train the changed model in another checkpoint.dir", fmt::join(changes, "; "));
}

void check_tensor_names(const CheckpointIndex& index, const std::vector<ParamRow>& rows, bool needs_moments,
                        const RunSpec& run, const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> found(index.tensors.begin(), index.tensors.end());
  const auto require = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = found.find(name);
    if (it == found.end())
      fail(Exit::checkpoint, fmt::format("{}: tensor {} is missing", folder, name),
           explain_other_model(index.run_toml, run));
    if (it->second != shape)
      fail(Exit::checkpoint,
           fmt::format("{}: tensor {} is {}, the model's is {}", folder, name, format_shape(it->second),
                       format_shape(shape)),
           explain_other_model(index.run_toml, run));
    found.erase(it);
  };
  for (const ParamRow& row : rows) {
    for (const StateKind kind : kStateKinds) {
      const std::string name = state_name(kind, row);
      const bool needed = kind == StateKind::param || needs_moments || found.count(name) != 0;
      if (has_state(kind, row) && needed) require(name, row.shape);
    }
  }
  if (!found.empty())
    fail(Exit::checkpoint,
         fmt::format("{}: tensor {} does not belong to the model", folder, printable(found.begin()->first)),
         explain_other_model(index.run_toml, run));
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder)
    : folder_(folder), index_(read_or_refuse(folder, [&] { return read_checkpoint_index(folder); })) {
  for (const CheckpointSlice& slice : index_.slices) by_tensor_[slice.tensor].push_back(&slice);
}

void CheckpointReader::check_files() const {
  std::set<std::string> files, missing;
  for (const CheckpointSlice& slice : index_.slices) files.insert(slice.file);
  for (const std::string& file : files)
    if (!path_exists(folder_ + "/" + file)) missing.insert(file);
  if (!missing.empty())
    fail(Exit::checkpoint,
         fmt::format("checkpoint {} is broken: {} of its files {} missing, the first is {}", folder_, missing.size(),
                     missing.size() == 1 ? "is" : "are", *missing.begin()),
         offer_older(folder_));
  read_or_refuse(folder_, [&] {
    for (const std::string& file : files) SafetensorsFile(folder_ + "/" + file);
  });
}

bool CheckpointReader::has_moments() const {
  return std::any_of(index_.tensors.begin(), index_.tensors.end(),
                     [](const auto& tensor) { return tensor.first.starts_with("adam_"); });
}

void CheckpointReader::check_tensors(const std::vector<ParamRow>& rows, bool needs_moments, const RunSpec& run) const {
  check_tensor_names(index_, rows, needs_moments, run, folder_);
}

void CheckpointReader::read(const std::string& tensor, const std::vector<int64_t>& shape, const TensorSlice& part,
                            Device device, TensorView values, TensorView near) {
  constexpr int64_t kPiece = 1 << 20;
  read_or_refuse(folder_, [&] {
    for (const CheckpointSlice* slice : by_tensor_[tensor])
      for_each_shared_run(shape, slice->part, part, [&](int64_t from, int64_t to, int64_t count) {
        const Stored& found = stored(*slice, shape);
        for (int64_t i = 0; i < count; i += kPiece) {
          const int64_t piece = std::min(kPiece, count - i);
          write_stored(device, found.bytes.data() + (from + i) * size_of(found.dtype), found.dtype,
                       values.slice(to + i, piece), near.data == nullptr ? near : near.slice(to + i, piece));
        }
      });
  });
}

const CheckpointReader::Stored& CheckpointReader::stored(const CheckpointSlice& slice,
                                                         const std::vector<int64_t>& shape) {
  Stored& known = verified_[&slice];
  if (!known.bytes.empty()) return known;
  auto& file = files_[slice.file];
  if (file == nullptr) file = std::make_unique<SafetensorsFile>(folder_ + "/" + slice.file);
  const SafetensorsEntry* entry = file->find(slice.key);
  const std::string where = fmt::format("{}/{}: tensor \"{}\"", folder_, slice.file, slice.key);
  if (entry == nullptr) fail(Exit::checkpoint, where + " is missing");
  const bool is_bf16 = entry->dtype == "BF16" && slice.tensor.starts_with("adam_");
  const std::vector<int64_t> expected = stored_shape(shape, slice.part);
  if ((entry->dtype != "F32" && !is_bf16) || entry->shape != expected)
    fail(Exit::checkpoint, fmt::format("{} is {} {}, the index says {} {}", where, printable(entry->dtype),
                                       format_shape(entry->shape), is_bf16 ? "BF16" : "F32", format_shape(expected)));
  const auto found = file->data(*entry);
  const std::string checksum = xxh3_hex(found);
  if (checksum != slice.checksum)
    fail(Exit::checkpoint, fmt::format("{} is corrupt: checksum {}, expected {}", where, checksum, slice.checksum));
  return known = {found, is_bf16 ? DType::bf16 : DType::f32};
}

}  // namespace mw
