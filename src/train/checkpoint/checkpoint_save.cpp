#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/host.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "engine/state_slices.h"
#include "formats/io/checksum.h"
#include "formats/weights/safetensors_writer.h"
#include "ops/elementwise.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/checkpoint_folder.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSavePiece = 4 << 20;  // elements written at a time, and of a GPU's memory on the host
// Bytes after which a file is synced: a disk that takes long for what the memory took at once is seen to move.
constexpr int64_t kSyncEvery = int64_t{256} << 20;

// Adds a slice that this rank writes.
void add_cut(std::vector<LocalSlice>& mine, const LocalSlice& slice) {
  for (LocalSlice& part : cut_slice(slice, kMostSliceElements)) mine.push_back(std::move(part));
}

// Which of this rank's slices it writes: dense ones are dealt out by size over the ranks that hold the same; expert
// ones belong to the first replica; what ZeRO cuts is its owner's; tied embeddings beside the head are copies.
std::vector<LocalSlice> slices_to_write(Engine& engine) {
  std::map<Replicas, std::vector<int64_t>> load;
  std::vector<LocalSlice> mine;
  for (const LocalSlice& slice : local_slices(engine.params, true)) {
    if (slice.is_copy) continue;
    if (slice.is_cut || slice.is_expert) {
      if (slice.is_cut || engine.plan.coords.edp == 0) add_cut(mine, slice);
      continue;
    }
    // The same walk on every replica, over whole dense slices only: all agree on the writer.
    const Comm& replicas = engine.comms.of(slice.replicas);
    std::vector<int64_t>& shares = load[slice.replicas];
    shares.resize(static_cast<size_t>(replicas.size()));
    const auto least = std::min_element(shares.begin(), shares.end());
    *least += slice.values.numel();
    if (least - shares.begin() == replicas.rank()) add_cut(mine, slice);
  }
  return mine;
}

// None where every run has the same.
SharedPlacements placements_to_record(const Plan& plan) {
  const Placements start = start_placements(plan.model, plan.run, plan.transports, plan.mesh.ep);
  return *plan.placements == start ? nullptr : plan.placements;
}

// Never the folder just written: a run that resumed from an older checkpoint writes lower steps than those it left
// behind.
void remove_oldest(Comm& world, const std::string& dir, int64_t keep, const std::string& written) {
  std::vector<std::string> complete;
  try {
    complete = list_checkpoints(dir);
  } catch (const Error& error) {  // the new one is there: the next save may find them again
    std::fputs(fmt::format("moewright: warning: {}; older checkpoints stay\n", error.what()).c_str(), stderr);
  }
  std::erase_if(complete, [&](const std::string& folder) { return fs::path(folder) == fs::path(written); });
  while (static_cast<int64_t>(complete.size()) > keep - 1) {
    remove_checkpoint(world, complete.front());
    complete.erase(complete.begin());
  }
}

// Checkpoints of NaNs would push out the good ones.
void check_finite(Engine& engine, int64_t step) {
  std::string bad;
  for (const Parameter& p : engine.params.all())
    if (bad.empty() && !all_finite(engine.stream, p.is_split() ? p.held_near() : p.master)) bad = p.row.name;
  if (on_any_rank(engine.world, !bad.empty()))
    fail(Exit::numeric,
         fmt::format("after step {} {} that is not finite; no checkpoint is written", step,
                     bad.empty() ? "another rank holds a weight" : fmt::format("{} holds a weight", bad)),
         "resume from an earlier checkpoint with a lower train.lr or a larger train.eps");
}

}  // namespace

// This rank's file, written on a thread of its own.
class CheckpointSave::RankFile {
 public:
  RankFile(Device device, std::vector<LocalSlice> slices, const std::string& folder, const std::string& file)
      : slices_(std::move(slices)),
        entries_(std::async(std::launch::async, [this, device, folder, file] { return write(device, folder, file); })) {
  }
  ~RankFile() { given_up_ = true; }  // and the future waits for the thread

  bool is_done_within(std::chrono::milliseconds time) const {
    return entries_.wait_for(time) == std::future_status::ready;
  }
  int64_t written() const { return written_; }  // bytes
  double seconds() const { return seconds_; }
  // The rank's part of the index. Errors: those of writing.
  nlohmann::json entries() { return entries_.get(); }

 private:
  nlohmann::json write(Device device, const std::string& folder, const std::string& file) {
    const double begin = now_seconds();
    nlohmann::json entries = nlohmann::json::array();
    SliceReader reader(device);
    SafetensorsWriter writer;
    for (const LocalSlice& slice : slices_)
      writer.declare(slice_key(slice.tensor, slice.part), safetensors_dtype(stored_dtype(slice)),
                     stored_shape(slice.global_shape, slice.part));
    writer.begin(folder + "/" + file);
    int64_t unsynced = 0;
    for (const LocalSlice& slice : slices_) {
      const std::string key = slice_key(slice.tensor, slice.part);
      Xxh3Stream checksum;
      const int64_t count = slice.values.numel();
      for (int64_t at = 0; at < count; at += kSavePiece) {
        if (given_up_) fail(Exit::checkpoint, "writing the checkpoint was given up");
        const auto piece = reader.read(slice, at, std::min(kSavePiece, count - at));
        checksum.update(piece);
        writer.write(key, piece);
        written_ += std::ssize(piece);
        unsynced += std::ssize(piece);
        if (unsynced < kSyncEvery) continue;
        writer.sync();
        unsynced = 0;
      }
      entries.push_back(slice_entry({slice.tensor, slice.part, file, key, checksum.hex()}));
    }
    if (given_up_) fail(Exit::checkpoint, "writing the checkpoint was given up");
    writer.finish();
    seconds_ = now_seconds() - begin;
    return entries;
  }

  std::vector<LocalSlice> slices_;
  std::atomic<bool> given_up_ = false;
  std::atomic<int64_t> written_ = 0;
  double seconds_ = 0;  // read once the entries are there
  std::future<nlohmann::json> entries_;
};

CheckpointSave::CheckpointSave(Engine& engine, const std::string& dir, const RunState& state, int64_t keep)
    : engine_(engine), dir_(dir), folder_(checkpoint_folder(dir, state.step)), state_(state), keep_(keep) {
  const TraceScope scope(engine_.stream.trace(), Work::checkpoint, "begin_checkpoint");
  check_finite(engine_, state_.step);
  agree(engine_.world, [&] {
    if (engine_.world.rank() == 0)
      prepare_checkpoint_folder(engine_.world, dir_, folder_, checkpoint_bytes(engine_.plan));
  });
  engine_.stream.wait();  // for the update: the thread reads on another queue
  file_ = std::make_unique<RankFile>(engine_.device, slices_to_write(engine_), folder_,
                                     rank_file_name(engine_.world.rank()));
}

CheckpointSave::~CheckpointSave() = default;

double CheckpointSave::write_seconds() const { return file_->seconds(); }

void CheckpointSave::finish() {
  const TraceScope scope(engine_.stream.trace(), Work::checkpoint, "finish_checkpoint");
  for (int64_t seen = -1; !file_->is_done_within(std::chrono::milliseconds(200));) {
    if (file_->written() == seen) continue;
    seen = file_->written();
    const TraceScope moved(engine_.stream.trace(), "write_rank_file");  // which a watchdog sees
  }
  try {
    complete();
  } catch (const Error& error) {  // where writing failed, no rank writes any more
    if (!is_save_failure(error)) throw;
    if (engine_.world.rank() == 0) remove_checkpoint_parts(engine_.world, folder_);
    fail(Exit::checkpoint, error.what(), error.hint());  // whatever file it was
  }
  if (engine_.world.rank() > 0) return;  // the others go on, while older ones go
  remove_oldest(engine_.world, dir_, keep_, folder_);
  remove_incomplete_checkpoints(engine_.world, dir_, state_.step);
}

void CheckpointSave::complete() {
  nlohmann::json entries;
  agree(engine_.world, [&] { entries = file_->entries(); });
  const nlohmann::json slices = gather_entries(engine_.world, entries);
  agree(engine_.world, [&] {
    if (engine_.world.rank() > 0) return;
    complete_checkpoint(folder_,
                        {state_, to_toml(engine_.plan.run), hf_config_of(engine_.plan.run, engine_.plan.model), true,
                         placements_to_record(engine_.plan)},
                        engine_.plan.params, slices);
    sync_path(dir_);  // the folder's own name, before older ones go
  });
}

bool is_save_failure(const Error& error) { return error.code() == Exit::checkpoint || error.code() == Exit::data; }

int64_t checkpoint_bytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const ParamRow& row : plan.params)
    for (const StateKind kind : kStateKinds)
      if (has_state(kind, row))
        bytes += row.numel() * size_of(kind == StateKind::param ? DType::f32 : plan.run.moments);
  return bytes;
}

void save_checkpoint(Engine& engine, const std::string& dir, const RunState& state, int64_t keep) {
  CheckpointSave(engine, dir, state, keep).finish();
}

}  // namespace mw
