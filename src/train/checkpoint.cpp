#include "train/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "formats/checksum.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "ops/elementwise.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// One slice that this rank holds: a run of entries of axis 0.
struct LocalSlice {
  std::string tensor;  // with its kind: "param. ..."
  std::vector<int64_t> global_shape;
  SlicePiece piece;
  std::span<float> values;
};

std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer) {
  std::vector<LocalSlice> slices;
  for (Parameter& p : engine.params.all()) {
    const int64_t entry = elements_per_entry(p.row);
    const auto add = [&](const char* kind, TensorView view) {
      for (const SlicePiece& piece : p.pieces)
        slices.push_back(
            {kind + p.row.name, p.row.shape, piece,
             std::span(view.as<float>() + piece.local_begin * entry, static_cast<size_t>(piece.count * entry))});
    };
    add("param.", p.master);
    if (!p.row.trained || !with_optimizer) continue;
    add("adam_m.", p.adam_m);
    add("adam_v.", p.adam_v);
  }
  return slices;
}

// Which of this rank's slices it writes: dense ones are dealt out over the replicas that hold them by size, expert ones
// belong to the first replica.
std::vector<LocalSlice> slices_to_write(Engine& engine) {
  const auto ranks = static_cast<size_t>(engine.comms.dp->size());
  std::vector<int64_t> load(ranks);
  std::vector<LocalSlice> mine;
  std::map<std::string, bool> expert, copy;
  for (const Parameter& p : engine.params.all()) {
    expert[p.row.name] = p.row.expert;
    copy[p.row.name] = p.is_copy;
  }
  for (LocalSlice& slice : local_slices(engine, true)) {
    const std::string name = slice.tensor.substr(slice.tensor.find('.') + 1);
    if (copy[name]) continue;
    if (expert[name]) {
      if (engine.plan.coords.edp == 0) mine.push_back(std::move(slice));
      continue;
    }
    // The same walk on every replica, over dense slices only: all agree on the writer.
    const size_t writer = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[writer] += static_cast<int64_t>(slice.values.size());
    if (static_cast<int>(writer) == engine.comms.dp->rank()) mine.push_back(std::move(slice));
  }
  return mine;
}

std::string key_of(const LocalSlice& slice) { return fmt::format("{}@{}", slice.tensor, slice.piece.global_begin); }

// Writes this rank's file and returns its part of the index.
nlohmann::json write_rank_file(Engine& engine, const std::string& folder) {
  const std::string file = fmt::format("rank-{:05}.safetensors", engine.world.rank());
  const std::vector<LocalSlice> slices = slices_to_write(engine);
  nlohmann::json entries = nlohmann::json::array();
  SafetensorsWriter writer;
  for (const LocalSlice& slice : slices) {
    std::vector<int64_t> shape = slice.global_shape;
    shape[0] = slice.piece.count;
    writer.declare(key_of(slice), "F32", shape);
  }
  writer.begin(folder + "/" + file);
  for (const LocalSlice& slice : slices) {
    const auto bytes = std::as_bytes(slice.values);
    writer.write(key_of(slice), bytes);
    entries.push_back({{"tensor", slice.tensor},
                       {"begin", slice.piece.global_begin},
                       {"count", slice.piece.count},
                       {"file", file},
                       {"key", key_of(slice)},
                       {"xxh3", xxh3_hex(bytes)}});
  }
  writer.finish();
  return entries;
}

void write_index(Engine& engine, const std::string& folder, const RunState& state, const nlohmann::json& slices) {
  nlohmann::json index = {
      {"format", "moewright-checkpoint"}, {"version", 1}, {"step", state.step}, {"samples", state.samples}};
  index["run"] = to_toml(engine.plan.run);
  for (const ParamRow& row : engine.plan.params) {
    index["tensors"]["param." + row.name] = row.shape;
    if (!row.trained) continue;
    index["tensors"]["adam_m." + row.name] = row.shape;
    index["tensors"]["adam_v." + row.name] = row.shape;
  }
  index["slices"] = slices;
  const std::string text = index.dump(1) + "\n";
  parse_checkpoint_index(text, folder + "/index.json");  // what is written must load: coverage is proven before DONE
  write_text_file_atomically(folder + "/index.json", text);
  write_text_file_atomically(folder + "/DONE", xxh3_hex(std::as_bytes(std::span(text))) + "\n");
}

// Never the folder just written: a run that resumed from an older checkpoint writes lower steps than those it left
// behind.
void remove_oldest(const std::string& dir, int64_t keep, const std::string& written) {
  std::vector<std::string> complete = list_checkpoints(dir);
  std::erase_if(complete, [&](const std::string& folder) { return fs::path(folder) == fs::path(written); });
  while (static_cast<int64_t>(complete.size()) > keep - 1) {
    std::error_code error;
    fs::remove(fs::path(complete.front()) / "DONE", error);  // first: a half-removed folder must not look complete
    fs::remove_all(complete.front(), error);
    complete.erase(complete.begin());
  }
}

// Checkpoints of NaNs would push out the good ones.
void check_finite(Engine& engine, int64_t step) {
  std::string bad;
  for (const Parameter& p : engine.params.all())
    if (bad.empty() && !all_finite(engine.stream, p.master)) bad = p.row.name;
  int64_t any_bad = bad.empty() ? 0 : 1;
  engine.world.all_reduce_max(std::span(&any_bad, 1));
  if (any_bad != 0)
    fail(Exit::numeric,
         fmt::format("after step {} {} that is not finite; no checkpoint is written", step,
                     bad.empty() ? "another rank holds a weight" : fmt::format("{} holds a weight", bad)),
         "resume from an earlier checkpoint with a lower train.lr or a larger train.eps");
}

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

// Opens the files of a checkpoint as they are needed and checks what is read.
class SliceReader {
 public:
  explicit SliceReader(const std::string& folder) : folder_(folder) {}

  // The values of a whole slice, verified.
  std::span<const std::byte> read(const CheckpointSlice& slice, const std::vector<int64_t>& global_shape) {
    auto& file = files_[slice.file];
    if (file == nullptr) file = std::make_unique<SafetensorsFile>(folder_ + "/" + slice.file);
    const SafetensorsEntry* entry = file->find(slice.key);
    const std::string where = fmt::format("{}/{}: tensor \"{}\"", folder_, slice.file, slice.key);
    if (entry == nullptr) fail(Exit::checkpoint, where + " is missing");
    std::vector<int64_t> shape = global_shape;
    shape[0] = slice.count;
    if (entry->dtype != "F32" || entry->shape != shape)
      fail(Exit::checkpoint, where + " has another dtype or shape than the index says");
    const auto bytes = file->data(*entry);
    const std::string checksum = xxh3_hex(bytes);
    if (checksum != slice.checksum)
      fail(Exit::checkpoint, fmt::format("{} is corrupt: checksum {}, expected {}", where, checksum, slice.checksum));
    return bytes;
  }

 private:
  std::string folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
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
    const int64_t entry = static_cast<int64_t>(local.values.size()) / local.piece.count;
    for (const CheckpointSlice* s : by_tensor[local.tensor]) {
      const int64_t begin = std::max(s->begin, local.piece.global_begin);
      const int64_t end = std::min(s->begin + s->count, local.piece.global_begin + local.piece.count);
      if (begin >= end) continue;
      const auto bytes = reader.read(*s, local.global_shape);
      const auto size = static_cast<size_t>((end - begin) * entry) * sizeof(float);
      std::memcpy(local.values.data() + (begin - local.piece.global_begin) * entry,
                  bytes.data() + static_cast<size_t>((begin - s->begin) * entry) * sizeof(float), size);
    }
  }
  return index.state;
}

}  // namespace

int64_t checkpoint_bytes(const Plan& plan) {
  int64_t values = 0;
  for (const ParamRow& row : plan.params) values += row.numel() * (row.trained ? 3 : 1);
  return values * static_cast<int64_t>(sizeof(float));
}

void save_checkpoint(Engine& engine, const std::string& dir, const RunState& state, int64_t keep) {
  const TraceScope scope(engine.stream.trace(), Work::checkpoint, "save_checkpoint");
  const std::string folder = fmt::format("{}/step-{:08}", dir, state.step);
  check_finite(engine, state.step);
  if (engine.world.rank() == 0) {
    std::error_code error;
    fs::remove(folder + "/DONE", error);  // a rewritten checkpoint is incomplete until it is done again
    fs::create_directories(folder, error);
    if (error)
      fail(Exit::checkpoint, fmt::format("cannot create {}: {}", folder, error.message()),
           "check checkpoint.dir and its permissions");
    const int64_t bytes = checkpoint_bytes(engine.plan);
    const fs::space_info space = fs::space(folder, error);
    if (!error && static_cast<int64_t>(space.available) < bytes)
      fail(Exit::checkpoint,
           fmt::format("{} has {} free, a checkpoint may need {}", dir,
                       format_bytes(static_cast<int64_t>(space.available)), format_bytes(bytes)),
           "free space or lower checkpoint.keep");
  }
  engine.world.barrier();
  const std::string own = write_rank_file(engine, folder).dump();
  nlohmann::json slices = nlohmann::json::array();
  for (int rank = 0; rank < engine.world.size(); ++rank) {
    const std::string part = broadcast_text(engine.world, own, rank);
    if (engine.world.rank() == 0)
      for (nlohmann::json& slice : nlohmann::json::parse(part)) slices.push_back(std::move(slice));
  }
  if (engine.world.rank() == 0) {
    write_index(engine, folder, state, slices);
    sync_path(dir);  // the folder's own name, before older ones go
    remove_oldest(dir, keep, folder);
  }
  engine.world.barrier();
}

RunState load_checkpoint(Engine& engine, const std::string& folder, bool weights_only) {
  const TraceScope scope(engine.stream.trace(), Work::checkpoint, "load_checkpoint");
  RunState state;
  try {
    state = load_slices(engine, folder, weights_only);
  } catch (const Error& error) {
    if (error.code() != Exit::checkpoint && error.code() != Exit::data) throw;
    fail(Exit::checkpoint, fmt::format("checkpoint {} is refused: {}", folder, error.what()), offer_older(folder));
  }
  engine.params.repack(engine.stream);
  engine.world.barrier();
  return state;
}

}  // namespace mw
