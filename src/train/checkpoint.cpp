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

enum class Writer : uint8_t { dealt, first_replica, owner, nobody };  // among the ranks that hold a slice

// One slice that this rank holds.
struct LocalSlice {
  std::string tensor;  // with its kind: "param. ..."
  std::vector<int64_t> global_shape;
  TensorSlice part;
  std::span<float> values;
  Replicas replicas;
  Writer writer;
};

std::vector<LocalSlice> local_slices(Engine& engine, bool with_optimizer) {
  std::vector<LocalSlice> slices;
  for (Parameter& p : engine.params.all()) {
    const Writer of_whole = p.row.expert ? Writer::first_replica : Writer::dealt;
    const auto add = [&](const char* kind, TensorView view, ElementRange range, bool is_cut) {
      for (const HeldSlice& held : held_slices(p.row.shape, p.pieces, range))
        slices.push_back({kind + p.row.name, p.row.shape, held.slice,
                          std::span(view.as<float>() + held.at, static_cast<size_t>(held.slice.size)), p.replicas,
                          p.is_copy ? Writer::nobody
                          : is_cut  ? Writer::owner
                                    : of_whole});
    };
    add("param.", p.master, p.held, p.holds_cut);
    if (!p.row.trained || !with_optimizer) continue;
    const bool is_cut = engine.params.block(p.replicas).is_cut();
    add("adam_m.", p.adam_m, p.owned, is_cut);
    add("adam_v.", p.adam_v, p.owned, is_cut);
  }
  return slices;
}

// Which of this rank's slices it writes: dense ones are dealt out by size over the ranks that hold the same; expert
// ones belong to the first replica; what ZeRO cuts is its owner's; tied embeddings beside the head are copies.
std::vector<LocalSlice> slices_to_write(Engine& engine) {
  std::map<Replicas, std::vector<int64_t>> load;
  std::vector<LocalSlice> mine;
  for (LocalSlice& slice : local_slices(engine, true)) {
    if (slice.writer == Writer::nobody) continue;
    if (slice.writer != Writer::dealt) {
      if (slice.writer == Writer::owner || engine.plan.coords.edp == 0) mine.push_back(std::move(slice));
      continue;
    }
    // The same walk on every replica, over whole dense slices only: all agree on the writer.
    const Comm& replicas = engine.comms.of(slice.replicas);
    std::vector<int64_t>& shares = load[slice.replicas];
    shares.resize(static_cast<size_t>(replicas.size()));
    const auto least = std::min_element(shares.begin(), shares.end());
    *least += static_cast<int64_t>(slice.values.size());
    if (least - shares.begin() == replicas.rank()) mine.push_back(std::move(slice));
  }
  return mine;
}

std::string key_of(const LocalSlice& slice) {
  return fmt::format("{}@{}+{}", slice.tensor, slice.part.begin, slice.part.first);
}

// As a rank file has it: the box, or a list of elements where it is a part of one.
std::vector<int64_t> stored_shape(std::vector<int64_t> global_shape, const TensorSlice& part) {
  if (part.size != box_elements(global_shape, part)) return {part.size};
  global_shape[static_cast<size_t>(part.axis)] = part.count;
  return global_shape;
}

// Writes this rank's file and returns its part of the index.
nlohmann::json write_rank_file(Engine& engine, const std::string& folder) {
  const std::string file = fmt::format("rank-{:05}.safetensors", engine.world.rank());
  const std::vector<LocalSlice> slices = slices_to_write(engine);
  nlohmann::json entries = nlohmann::json::array();
  SafetensorsWriter writer;
  for (const LocalSlice& slice : slices)
    writer.declare(key_of(slice), "F32", stored_shape(slice.global_shape, slice.part));
  writer.begin(folder + "/" + file);
  for (const LocalSlice& slice : slices) {
    const TraceScope scope(engine.stream.trace(), Work::checkpoint, "write_tensor");
    const auto bytes = std::as_bytes(slice.values);
    writer.write(key_of(slice), bytes);
    entries.push_back({{"tensor", slice.tensor},
                       {"axis", slice.part.axis},
                       {"begin", slice.part.begin},
                       {"count", slice.part.count},
                       {"first", slice.part.first},
                       {"size", slice.part.size},
                       {"file", file},
                       {"key", key_of(slice)},
                       {"xxh3", xxh3_hex(bytes)}});
  }
  writer.finish();
  return entries;
}

void write_index(Engine& engine, const std::string& folder, const RunState& state, const nlohmann::json& slices) {
  nlohmann::json index = {
      {"format", "moewright-checkpoint"}, {"version", 2}, {"step", state.step}, {"samples", state.samples}};
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
  refresh_weights(engine);
  engine.world.barrier();
  return state;
}

}  // namespace mw
