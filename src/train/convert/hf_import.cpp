#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "comm/watchdog/watchdog.h"
#include "config/hf_config.h"
#include "formats/io/checksum.h"
#include "formats/weights/hf_folder.h"
#include "formats/weights/hf_reader.h"
#include "formats/weights/safetensors_writer.h"
#include "train/checkpoint/checkpoint_files.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/model_path.h"
#include "train/convert/hf_convert.h"

namespace mw {
namespace {

constexpr int64_t kImportPiece = int64_t{4} << 20;  // elements in memory at a time

// Errors: config, where the folder has no config.json: what it is instead.
void refuse_other_folder(const std::string& dir) {
  constexpr const char* kNeeds = "name a Hugging Face model folder, with config.json and .safetensors files";
  std::error_code unreadable;
  if (std::filesystem::exists(dir + "/config.json", unreadable)) return;
  if (unreadable) fail(Exit::config, fmt::format("cannot read {}/config.json: {}", dir, unreadable.message()), kNeeds);
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    fail(Exit::config, fmt::format("{} {}", dir, what), hint);
  };
  const ModelPath found = find_model_path(dir);
  const std::string& checkpoint = found.checkpoint;
  const std::string use = checkpoint.empty() ? kNeeds
                                             : fmt::format(
                                                   "commands take {} as it is: `moewright evaluate {}`, "
                                                   "checkpoint.resume={}",
                                                   checkpoint, checkpoint, checkpoint);
  switch (found.kind) {
    case ModelPathKind::checkpoint:
    case ModelPathKind::unfinished: return refuse("is a checkpoint, not a Hugging Face model folder", use);
    case ModelPathKind::run:
    case ModelPathKind::empty_run: return refuse("is a run folder, not a Hugging Face model folder", use);
    case ModelPathKind::file: return refuse("is a file, not a Hugging Face model folder", kNeeds);
    case ModelPathKind::missing:
      return refuse("does not exist",
                    fmt::format("{}; the path is relative to {}", kNeeds, std::filesystem::current_path().native()));
    default: return refuse("is no Hugging Face model folder: it has no config.json", kNeeds);
  }
}

// Which parameters this rank writes: each goes to the one that has least, so that all agree.
std::vector<ParamRow> rows_to_write(const std::vector<ParamRow>& rows, const Comm& world) {
  std::vector<int64_t> load(static_cast<size_t>(world.size()));
  std::vector<ParamRow> mine;
  for (const ParamRow& row : rows) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += row.numel();
    if (least - load.begin() == world.rank()) mine.push_back(row);
  }
  return mine;
}

void check_finite(std::span<const float> values, const std::string& name, const std::string& dir) {
  if (std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) return;
  fail(Exit::numeric, fmt::format("{}: tensor \"{}\" holds a value that is not finite", dir, name),
       "the model is broken; fetch it again");
}

// The slices of a parameter: each expert is one, unless it is too large, so that a rank of a run verifies its own
// alone.
std::vector<TensorSlice> slices_of_row(const ParamRow& row) {
  std::vector<TensorSlice> slices;
  const int64_t entries = row.shape.front(), each = row.expert ? 1 : entries;
  for (int64_t entry = 0; entry < entries; entry += each)
    for (const TensorSlice& part : cut_slice(whole_box(row.shape, 0, entry, each), kMostSliceElements))
      slices.push_back(part);
  return slices;
}

// Streams the tensors of a folder into this rank's file of a checkpoint.
class RankWriter {
 public:
  RankWriter(Comm& world, const HfFolder& folder, std::vector<ParamRow> rows, const std::string& checkpoint)
      : world_(world), folder_(folder), rows_(std::move(rows)), file_(rank_file_name(world.rank())) {
    for (const HfTensor& tensor : folder_.tensors) sources_[tensor.param].push_back(&tensor);
    for (const ParamRow& row : rows_) {
      order_sources(row);
      for (const TensorSlice& slice : slices_of_row(row))
        writer_.declare(key(row, slice), "F32", stored_shape(row.shape, slice));
    }
    writer_.begin(checkpoint + "/" + file_);
  }

  // Its part of the index.
  nlohmann::json write() {
    nlohmann::json entries = nlohmann::json::array();
    for (const ParamRow& row : rows_)
      for (const TensorSlice& slice : slices_of_row(row))
        entries.push_back(slice_entry({name_of(row), slice, file_, key(row, slice), write_slice(row, slice)}));
    note_work(world_, "finish_file");
    writer_.finish();
    return entries;
  }

 private:
  static std::string name_of(const ParamRow& row) { return "param." + row.name; }
  static std::string key(const ParamRow& row, const TensorSlice& slice) { return slice_key(name_of(row), slice); }

  // By their place in the parameter, which they cover.
  void order_sources(const ParamRow& row) {
    std::vector<const HfTensor*>& sources = sources_[row.name];
    std::sort(sources.begin(), sources.end(), [](const HfTensor* a, const HfTensor* b) { return a->begin < b->begin; });
    int64_t at = 0;
    for (const HfTensor* source : sources) {
      MW_CHECK(source->begin == at, "{} begins at {} of {}, expected {}", source->name, source->begin, row.name, at);
      at += source->numel();
    }
    MW_CHECK(at == row.numel(), "{} has {} elements, its tensors {}", row.name, row.numel(), at);
  }

  // The checksum of what was written.
  std::string write_slice(const ParamRow& row, const TensorSlice& slice) {
    const std::vector<const HfTensor*>& sources = sources_.at(row.name);
    const int64_t begin = slice.begin * (row.numel() / row.shape.front()) + slice.first, end = begin + slice.size;
    auto source = std::upper_bound(sources.begin(), sources.end(), begin,
                                   [](int64_t at, const HfTensor* tensor) { return at < tensor->begin; }) -
                  1;
    Xxh3Stream checksum;
    for (int64_t at = begin; at < end; at += std::ssize(values_)) {
      note_work(world_, "convert_tensor");
      if (at == (*source)->begin + (*source)->numel()) ++source;
      const int64_t first = at - (*source)->begin;
      values_.resize(static_cast<size_t>(std::min({kImportPiece, end - at, (*source)->numel() - first})));
      read_hf_tensor(folder_.files, **source, first, values_);
      check_finite(values_, (*source)->name, folder_.files.path());
      const auto bytes = std::as_bytes(std::span(values_));
      checksum.update(bytes);
      writer_.write(key(row, slice), bytes);
    }
    return checksum.hex();
  }

  Comm& world_;
  const HfFolder& folder_;
  std::vector<ParamRow> rows_;
  std::string file_;
  std::map<std::string, std::vector<const HfTensor*>> sources_;  // by parameter
  SafetensorsWriter writer_;
  std::vector<float> values_;
};

}  // namespace

std::string import_hf_folder(Comm& world, const std::string& hf_dir, const std::string& dir) {
  refuse_other_folder(hf_dir);
  const ModelSpec model = read_hf_config(hf_dir + "/config.json");
  const RunSpec run = run_of_hf_folder(hf_dir);  // so that commands compute with the checkpoint as with the folder
  const HfFolder folder = open_hf_folder(model, hf_dir);
  const std::vector<ParamRow> rows = param_table(model);
  const std::string checkpoint = checkpoint_folder(dir, 0);
  std::unique_ptr<OutputLock> lock;
  if (world.rank() == 0) {
    check_tied_head(folder, model);
    lock = lock_checkpoints(dir);
    if (const std::string newest = newest_checkpoint(dir); !newest.empty())
      fail(Exit::checkpoint, fmt::format("{} is there already", newest), "import into another folder, or remove it");
    prepare_checkpoint_folder(world, dir, checkpoint, parameter_count(model) * size_of(DType::f32));
  }
  world.barrier();
  const nlohmann::json slices =
      gather_entries(world, RankWriter(world, folder, rows_to_write(rows, world), checkpoint).write());
  if (world.rank() == 0) {
    complete_checkpoint(checkpoint, {RunState{}, to_toml(run), hf_config_of(run, model), false}, rows, slices);
    sync_path(dir);
  }
  world.barrier();
  return (folder.note.empty() ? "" : folder.note + "\n") + fmt::format("wrote {}", checkpoint);
}

}  // namespace mw
