#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "comm/watchdog/watchdog.h"
#include "config/hf_config.h"
#include "config/hf_families.h"
#include "config/hf_family.h"
#include "formats/weights/axis_order.h"
#include "formats/weights/hf_shards.h"
#include "formats/weights/safetensors_writer.h"
#include "layout/shards.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/convert/hf_convert.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kExportPiece = int64_t{4} << 20;  // elements in memory at a time

// The model as its family has it, and its config.json.
struct Target {
  ModelSpec model;
  DType dtype = DType::bf16;
  std::string config;
  std::vector<HfTensor> tensors;
  std::vector<HfShard> shards;
};

const char* hf_name(DType dtype) { return dtype == DType::bf16 ? "bfloat16" : "float32"; }

// A run of a [model] table: the family is found, and what config.json says beside the table comes from the run.
void describe_native(const RunSpec& run, const HfExport& request, Target& target) {
  target.model = hf_model_of(run);
  target.dtype = request.dtype.value_or(run.train.dtype);
  // Without these the family's own would stand in.
  const std::string more = fmt::format(
      R"({{"max_position_embeddings": {}, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null}})",
      run.train.seq_len);
  target.config = extend_hf_config(write_hf_config(target.model, hf_name(target.dtype)), more, "run");
}

// Values of fp16 fit fp32 alone.
DType dtype_like(const std::string& source, DType of_run) {
  if (source == "float32" || source == "float16") return DType::f32;
  return source == "bfloat16" ? DType::bf16 : of_run;
}

// A run of model = "hf:DIR": what its config.json says beside the architecture stays. An imported model has the
// folder's values, which fp32 keeps.
void describe_family(const CheckpointIndex& index, const RunSpec& run, const std::string& source,
                     const HfExport& request, Target& target) {
  const std::string path = source + "/config.json";
  if (!path_exists(path, Exit::config))
    fail(Exit::config, fmt::format("{} is not there", path), "name the folder that the model came from with --source");
  const std::string text = read_text_file(path, size_t{16} << 20);
  target.model = parse_hf_config(text, path);
  target.model.mtp_layers = 0;
  const DType of_weights = index.state.step == 0 ? DType::f32 : run.train.dtype;
  target.dtype = request.dtype.value_or(dtype_like(hf_weight_dtype(text, path), of_weights));
  target.config = extend_hf_config(write_hf_config(target.model, hf_name(target.dtype)), text, path);
}

// tokenizer: that of a run without a source, if it has one.
Target describe_target(const CheckpointReader& reader, const HfExport& request, std::string& source,
                       std::string& tokenizer) {
  const RunSpec run = parse_run_text(reader.index().run_toml, request.checkpoint + "/index.json: run", {});
  source = request.source.empty() ? run.hf_dir : request.source;
  if (source.empty()) tokenizer = run.sample.tokenizer;
  Target target;
  if (run.hf_dir.empty()) describe_native(run, request, target);
  else describe_family(reader.index(), run, source, request, target);
  if (!run.hf_dir.empty() && is_other_model(reader.index().hf_config, target.model))
    fail(Exit::checkpoint,
         fmt::format("{}/config.json describes another model than the weights were trained as", source),
         "restore it, or pass the folder as it was with --source");
  MW_CHECK(parse_hf_config(target.config, "the config.json to write") == target.model,
           "config.json does not say what the model is");
  reader.check_tensors(param_table(target.model), false, run);
  target.tensors = hf_tensors(target.model);
  target.shards = cut_into_shards(target.tensors, target.dtype, request.shard_bytes);
  return target;
}

// OUT.tmp, which becomes OUT. Removed when it is destroyed before that.
class NewFolder {
 public:
  // Errors: data.
  explicit NewFolder(const std::string& out) : out_(out), path_(temporary_name(out)) {
    for (const std::string& path : {out_, path_})
      if (path_exists(path))
        fail(Exit::data, fmt::format("{} is there already", path),
             path == out_ ? "export into a new folder" : "another export writes it, or was broken off: remove it then");
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      fail(Exit::data, fmt::format("cannot create {}: {}", path_, error.message()),
           "check the path and its permissions");
  }
  NewFolder(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!done_) fs::remove_all(path_, ignored);
  }
  static std::string temporary_name(const std::string& out) { return out + ".tmp"; }
  void finish() {
    std::error_code error;
    fs::rename(path_, out_, error);
    if (error)
      fail(Exit::data, fmt::format("cannot rename {} to {}: {}", path_, out_, error.message()),
           "check the path and its permissions");
    done_ = true;
    const std::string parent = fs::path(out_).parent_path().string();
    sync_path(parent.empty() ? "." : parent);
  }

 private:
  std::string out_, path_;
  bool done_ = false;
};

// Brings tensors from the checkpoint into files, a piece at a time.
class ShardWriter {
 public:
  ShardWriter(Comm& world, CheckpointReader& reader, const Target& target)
      : world_(world), reader_(reader), target_(target) {
    for (const ParamRow& row : param_table(target.model)) shapes_[row.name] = row.shape;
  }

  void write(const HfShard& shard, const std::string& dir) {
    SafetensorsWriter writer;
    writer.set_metadata("format", "pt");
    for (const size_t i : shard.tensors) {
      const HfTensor& tensor = target_.tensors[i];
      writer.declare(tensor.name, safetensors_dtype(written_dtype(tensor, target_.dtype)), tensor.shape);
    }
    writer.begin(dir + "/" + shard.file);
    for (const size_t i : shard.tensors) write_tensor(writer, target_.tensors[i]);
    note_work(world_, "finish_file");
    writer.finish();
  }

 private:
  void write_tensor(SafetensorsWriter& writer, const HfTensor& tensor) {
    const std::vector<int64_t>& shape = shapes_.at(tensor.param);
    // Where the file has the axes behind the first in another order, a piece is an entry of the first.
    const int64_t most = tensor.axes.empty() ? kExportPiece : tensor.numel() / shape.front();
    for (int64_t first = 0; first < tensor.numel(); first += most) {
      note_work(world_, "convert_tensor");
      TensorSlice piece = whole_tensor(shape);
      piece.first = tensor.begin + first;
      piece.size = std::min(most, tensor.numel() - first);
      values_.resize(static_cast<size_t>(piece.size));
      reader_.read("param." + tensor.param, shape, piece, {}, TensorView(values_.data(), DType::f32, {piece.size}));
      if (!tensor.axes.empty()) to_file_order(tensor, first);
      if (written_dtype(tensor, target_.dtype) == DType::f32) {
        writer.write(tensor.name, std::as_bytes(std::span(values_)));
        continue;
      }
      narrow_.resize(values_.size());
      std::transform(values_.begin(), values_.end(), narrow_.begin(), to_bf16);
      writer.write(tensor.name, std::as_bytes(std::span(narrow_)));
    }
  }

  // Of values_, which are those of the parameter from `first` on.
  void to_file_order(const HfTensor& tensor, int64_t first) {
    ordered_.resize(values_.size());
    for_each_file_run(
        tensor, first, std::ssize(values_), [&](int64_t at, int64_t begin, int64_t stride, int64_t count) {
          for (int64_t i = 0; i < count; ++i)
            ordered_[static_cast<size_t>(begin - first + i * stride)] = values_[static_cast<size_t>(at + i)];
        });
    std::swap(values_, ordered_);
  }

  Comm& world_;
  CheckpointReader& reader_;
  const Target& target_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // by parameter
  std::vector<float> values_, ordered_;
  std::vector<bf16> narrow_;
};

// Re-reads all headers: what is there must be what was meant, in the file that the index says.
void check_written(const std::string& dir, const Target& target) {
  const SafetensorsSet files = open_safetensors_folder(dir);
  const auto refuse = [&](const std::string& what) {
    fail(Exit::data, fmt::format("{}: {}", dir, what), "something else writes into this folder, or the disk is broken");
  };
  for (const HfTensor& t : target.tensors) {
    const SafetensorsEntry& entry = *files.require(t.name).entry;
    const std::string_view dtype = safetensors_dtype(written_dtype(t, target.dtype));
    if (entry.shape != t.shape || entry.dtype != dtype)
      refuse(fmt::format("{} was written as {} {}, expected {} {}", t.name, entry.dtype, format_shape(entry.shape),
                         dtype, format_shape(t.shape)));
  }
  if (files.names().size() != target.tensors.size())
    refuse(fmt::format("{} tensors were written, expected {}", files.names().size(), target.tensors.size()));
}

// Tokenizer, generation_config.json, remote code, licence: all but config.json, hidden files and weights of any format.
bool goes_along(const std::string& name) {
  static constexpr std::array kWeights = {".safetensors", ".index.json", ".bin", ".pt",      ".pth",
                                          ".ckpt",        ".gguf",       ".h5",  ".msgpack", ".onnx"};
  return name != "config.json" && name.front() != '.' &&
         std::none_of(kWeights.begin(), kWeights.end(), [&](const char* end) { return name.ends_with(end); });
}

void copy_one(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error)
    fail(Exit::data, fmt::format("cannot copy {} to {}: {}", from.string(), to.string(), error.message()),
         "free space and check permissions");
}

void copy_other_files(const std::string& from, const std::string& to) {
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unreadable;
    if (goes_along(name) && it->is_regular_file(unreadable)) copy_one(it->path(), fs::path(to) / name);
  }
  if (error)
    fail(Exit::data, fmt::format("cannot list {}: {}", from, error.message()), "check the path and its permissions");
}

// What sample.tokenizer names, under the name that Hugging Face's libraries look for. Returns words for the log.
std::string copy_tokenizer(const std::string& tokenizer, const std::string& to) {
  if (tokenizer.empty()) return "";
  std::error_code error;
  if (fs::is_directory(tokenizer, error)) copy_other_files(tokenizer, to);
  else if (!fs::exists(tokenizer, error))
    return fmt::format("; without the tokenizer {}, which is not there", tokenizer);
  else copy_one(tokenizer, fs::path(to) / (tokenizer.ends_with(".model") ? "tokenizer.model" : "tokenizer.json"));
  return fmt::format(", with the tokenizer {}", tokenizer);
}

}  // namespace

ModelSpec hf_model_of(const RunSpec& run) {
  ModelSpec model = fit_hf_family(load_model_spec(run));
  if (!run.hf_dir.empty()) return model;
  // Some configs know no loss, DeepSeek's the one over sequences alone, the others' no scope.
  const HfAuxLoss loss = find_hf_family(model.family)->aux_loss;
  model.sequence_aux = loss == HfAuxLoss::of_sequences && aux_scope(run, model) == AuxScope::sequence;
  const bool is_said = loss == HfAuxLoss::of_model || model.sequence_aux;
  model.aux_loss_coef = is_said ? aux_loss_coef(run, model) : 0;
  return model;
}

std::string export_checkpoint(Comm& world, const HfExport& request) {
  CheckpointReader reader(request.checkpoint);
  std::string source, tokenizer, copied;
  const Target target = describe_target(reader, request, source, tokenizer);
  const bool leader = world.rank() == 0;
  std::optional<NewFolder> folder;
  if (leader) folder.emplace(request.out);
  world.barrier();
  const std::string dir = NewFolder::temporary_name(request.out);
  ShardWriter writer(world, reader, target);
  // Neighbours, which often need the same slices of the checkpoint.
  const Block mine = block_of(std::ssize(target.shards), world.size(), world.rank());
  for (const HfShard& shard : std::span(target.shards).subspan(mine.begin, mine.count)) writer.write(shard, dir);
  world.barrier();
  if (leader) {
    if (target.shards.size() > 1)
      write_text_file_atomically(dir + "/model.safetensors.index.json",
                                 hf_index_text(target.tensors, target.shards, target.dtype));
    if (!source.empty()) copy_other_files(source, dir);
    copied = copy_tokenizer(tokenizer, dir);
    write_text_file_atomically(dir + "/config.json", target.config);
    check_written(dir, target);
    folder->finish();
  }
  world.barrier();
  return fmt::format("wrote {}: {} in {}, {}{}", request.out, target.model.family, hf_name(target.dtype),
                     counted(std::ssize(target.shards), "file"), copied);
}

}  // namespace mw
