#include "train/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "base/text.h"
#include "formats/checksum.h"
#include "formats/safetensors.h"
#include "train/checkpoint_slices.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// Complete checkpoints beside `folder`, for a hint. Beside one of another name any is older.
std::string offer_older(const std::string& folder) {
  fs::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  const std::string parent = path.parent_path().string();
  const int64_t refused = step_of_folder(path.filename().string());
  const std::vector<std::string> all = list_checkpoints(parent.empty() ? "." : parent);
  for (auto it = all.rbegin(); it != all.rend(); ++it)
    if (refused < 0 || step_of_folder(fs::path(*it).filename().string()) < refused)
      return fmt::format("an older complete checkpoint is there: checkpoint.resume={}", *it);
  return "there is no older complete checkpoint; start anew with checkpoint.resume=none";
}

// Opens the files of a checkpoint as they are needed and checks what is read, once.
class SliceReader {
 public:
  explicit SliceReader(const std::string& folder) : folder_(folder) {}

  // The values of a stored slice, verified.
  std::span<const std::byte> read(const CheckpointSlice& slice, const std::vector<int64_t>& global_shape) {
    std::span<const std::byte>& bytes = verified_[&slice];
    if (bytes.empty()) bytes = verify(slice, global_shape);
    return bytes;
  }

 private:
  std::span<const std::byte> verify(const CheckpointSlice& slice, const std::vector<int64_t>& global_shape) {
    auto& file = files_[slice.file];
    if (file == nullptr) file = std::make_unique<SafetensorsFile>(folder_ + "/" + slice.file);
    const SafetensorsEntry* entry = file->find(slice.key);
    const std::string where = fmt::format("{}/{}: tensor \"{}\"", folder_, slice.file, slice.key);
    if (entry == nullptr) fail(Exit::checkpoint, where + " is missing");
    if (entry->dtype != "F32" || entry->shape != stored_shape(global_shape, slice.part))
      fail(Exit::checkpoint, where + " has another dtype or shape than the index says");
    const auto bytes = file->data(*entry);
    const std::string checksum = xxh3_hex(bytes);
    if (checksum != slice.checksum)
      fail(Exit::checkpoint, fmt::format("{} is corrupt: checksum {}, expected {}", where, checksum, slice.checksum));
    return bytes;
  }

  std::string folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<const CheckpointSlice*, std::span<const std::byte>> verified_;
};

void check_fits(const CheckpointIndex& index, const Plan& plan, bool weights_only, const std::string& folder) {
  std::map<std::string, std::vector<int64_t>> found(index.tensors.begin(), index.tensors.end());
  const auto require = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto it = found.find(name);
    if (it == found.end())
      fail(Exit::checkpoint, fmt::format("{}: tensor {} is missing", folder, name),
           "the checkpoint belongs to another model");
    if (it->second != shape)
      fail(Exit::checkpoint, fmt::format("{}: tensor {} has another shape than the model's", folder, name),
           "the checkpoint belongs to another model");
    found.erase(it);
  };
  for (const ParamRow& row : plan.params) {
    require("param." + row.name, row.shape);
    if (!row.trained) continue;
    if (!weights_only || found.count("adam_m." + row.name) != 0) require("adam_m." + row.name, row.shape);
    if (!weights_only || found.count("adam_v." + row.name) != 0) require("adam_v." + row.name, row.shape);
  }
  if (!found.empty())
    fail(Exit::checkpoint,
         fmt::format("{}: tensor {} does not belong to the model", folder, printable(found.begin()->first)),
         "the checkpoint belongs to another model");
}

RunState load_slices(Engine& engine, const std::string& folder, bool weights_only) {
  const CheckpointIndex index = read_checkpoint_index(folder);
  check_fits(index, engine.plan, weights_only, folder);
  std::map<std::string, std::vector<const CheckpointSlice*>> by_tensor;
  for (const CheckpointSlice& s : index.slices) by_tensor[s.tensor].push_back(&s);
  SliceReader reader(folder);
  for (const LocalSlice& local : local_slices(engine, !weights_only)) {
    const TraceScope scope(engine.stream.trace(), Work::checkpoint, "read_tensor");
    for (const CheckpointSlice* s : by_tensor[local.tensor])
      for_each_shared_run(local.global_shape, s->part, local.part, [&](int64_t from, int64_t to, int64_t count) {
        const std::byte* stored = reader.read(*s, local.global_shape).data();
        std::memcpy(local.values.data() + to, stored + static_cast<size_t>(from) * sizeof(float),
                    static_cast<size_t>(count) * sizeof(float));
      });
  }
  return index.state;
}

}  // namespace

RunState load_checkpoint(Engine& engine, const std::string& folder, bool weights_only) {
  const TraceScope scope(engine.stream.trace(), Work::checkpoint, "load_checkpoint");
  RunState state;
  try {
    state = load_slices(engine, folder, weights_only);
  } catch (const Error& error) {
    if (error.code() != Exit::checkpoint && error.code() != Exit::data) throw;
    fail(Exit::checkpoint, fmt::format("checkpoint {} is refused: {}", folder, error.what()), offer_older(folder));
  }
  refresh_weights(engine);
  engine.world.barrier();
  return state;
}

}  // namespace mw
