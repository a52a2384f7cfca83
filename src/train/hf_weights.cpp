#include "train/hf_weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "formats/hf_names.h"
#include "formats/hf_reader.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "spec/hf_config.h"

namespace mw {
namespace {

// Which names this folder uses for experts: one by one, or fused per layer.
std::vector<HfTensor> choose_names(const ModelSpec& model, const SafetensorsSet& files) {
  const auto present = [&](const std::vector<HfTensor>& names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const HfTensor& t) { return files.find(t.name).file != nullptr; });
  };
  std::vector<HfTensor> fused = hf_fused_tensors(model);
  if (present(fused)) return fused;
  // A config that asks for far more experts than there are tensors is refused before its names are listed.
  int64_t experts = 0;
  for (const LayerSpec& layer : model.layers) experts += layer.moe.experts;
  const auto found = static_cast<int64_t>(files.names().size());
  if (experts > found + 1000)
    fail(Exit::data, fmt::format("{}: {} tensors, but config.json describes {} experts", files.path(), found, experts),
         "config.json and the weights do not fit together");
  return hf_tensors(model);
}

// Reads the part of one Hugging Face tensor that this rank holds of the parameter.
void read_held(const SafetensorsSet& files, const HfTensor& tensor, Parameter& p) {
  const std::vector<int64_t>& shape = p.row.shape;
  for (const HeldSlice& held : held_slices(shape, p.pieces, p.held))
    for_each_shared_run(shape, whole_tensor(shape), held.slice, [&](int64_t global, int64_t local, int64_t count) {
      const int64_t begin = std::max(tensor.begin, global),
                    end = std::min(tensor.begin + tensor.numel(), global + count);
      if (begin >= end) return;
      const std::span to(p.master.as<float>() + held.at + local + begin - global, static_cast<size_t>(end - begin));
      read_hf_tensor(files, tensor, begin - tensor.begin, to);
    });
}

// A tied model may carry lm_head.weight all the same: then it must be the embedding.
void check_tied_head(const SafetensorsSet& files, const Engine& engine) {
  const SafetensorsLocation head = files.find("lm_head.weight"), embed = files.find("model.embed_tokens.weight");
  if (head.file == nullptr || !engine.plan.model.tie_embeddings) return;
  const auto a = head.file->data(*head.entry), b = embed.file->data(*embed.entry);
  if (head.entry->dtype != embed.entry->dtype || !std::equal(a.begin(), a.end(), b.begin(), b.end()))
    fail(Exit::data,
         fmt::format("{}: lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings is true",
                     files.path()),
         "set tie_word_embeddings to false in config.json, or remove one of them");
}

// Whether a tensor is of one of the `count` layers of multi-token prediction, which follow the last.
bool is_of_mtp_layer(const std::string& name, int64_t layers, int64_t count) {
  for (int64_t i = layers; i < layers + count; ++i)
    if (name.rfind(fmt::format("model.layers.{}.", i), 0) == 0) return true;
  return false;
}

// Refuses what does not belong to the model; returns how many tensors of multi-token prediction there are.
int64_t check_extras(const SafetensorsSet& files, const std::vector<HfTensor>& names, const ModelSpec& model) {
  std::set<std::string> known;
  for (const HfTensor& t : names) {
    known.insert(t.name);
    const SafetensorsLocation at = files.find(t.name);
    if (at.entry != nullptr && at.entry->dtype == "F8_E4M3") known.insert(scale_name(t.name));
  }
  if (model.tie_embeddings) known.insert("lm_head.weight");
  int64_t skipped = 0;
  for (const std::string& name : files.names()) {
    if (known.count(name) != 0 || has_suffix(name, "rotary_emb.inv_freq")) continue;
    if (is_of_mtp_layer(name, model.layer_count(), model.mtp_layers)) {
      ++skipped;
      continue;
    }
    fail(Exit::data, fmt::format("{}: tensor \"{}\" does not belong to this model", files.path(), printable(name, 120)),
         "config.json and the weights do not fit together; nothing is dropped silently");
  }
  return skipped;
}

struct Shard {
  std::vector<const HfTensor*> tensors;
  int64_t bytes = 0;
};

// What a tensor is written in, in an export of `dtype`.
DType written_dtype(const HfTensor& tensor, DType dtype) { return tensor.keeps_f32 ? DType::f32 : dtype; }

std::vector<Shard> split_shards(const std::vector<HfTensor>& names, DType dtype, int64_t limit) {
  std::vector<Shard> shards(1);
  for (const HfTensor& t : names) {
    const int64_t bytes = t.numel() * size_of(written_dtype(t, dtype));
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > limit) shards.emplace_back();
    shards.back().tensors.push_back(&t);
    shards.back().bytes += bytes;
  }
  return shards;
}

void write_tensor(SafetensorsWriter& writer, const HfTensor& tensor, const float* values, DType dtype) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<bf16> narrow;
  for (int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, tensor.numel() - begin);
    if (dtype == DType::f32) {
      writer.write(tensor.name, std::as_bytes(std::span(values + begin, static_cast<size_t>(count))));
      continue;
    }
    narrow.resize(static_cast<size_t>(count));
    std::transform(values + begin, values + begin + count, narrow.begin(), to_bf16);
    writer.write(tensor.name, std::as_bytes(std::span(narrow)));
  }
}

// Re-reads headers: the set of names and shapes must be the table's.
void check_export(const std::string& dir, const std::vector<HfTensor>& names) {
  const SafetensorsSet files = open_safetensors_folder(dir);
  for (const HfTensor& t : names) {
    const SafetensorsLocation at = files.require(t.name);
    if (at.entry->shape != t.shape)
      fail(Exit::data, fmt::format("{}: {} was written as {}, expected {}", dir, t.name, format_shape(at.entry->shape),
                                   format_shape(t.shape)));
  }
  if (files.names().size() != names.size())
    fail(Exit::data, fmt::format("{}: {} tensors were written, expected {}", dir, files.names().size(), names.size()));
}

void copy_other_files(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool written_here =
        name == "config.json" || has_suffix(name, ".safetensors") || has_suffix(name, ".safetensors.index.json");
    std::error_code unreadable;
    if (written_here || !it->is_regular_file(unreadable)) continue;
    fs::copy_file(it->path(), fs::path(to) / name, fs::copy_options::overwrite_existing, error);
    if (error)
      fail(Exit::data, fmt::format("cannot copy {} into {}: {}", it->path().string(), to, error.message()),
           "free space and check permissions, then export into a new folder");
  }
  if (error)
    fail(Exit::data, fmt::format("cannot list {}: {}", from, error.message()), "check the path and its permissions");
}

}  // namespace

std::string check_hf_folder(const ModelSpec& model, const std::string& dir) {
  const SafetensorsSet files = open_safetensors_folder(dir);
  const std::vector<HfTensor> names = choose_names(model, files);
  const int64_t skipped = check_extras(files, names, model);
  for (const HfTensor& tensor : names) check_hf_tensor(files, tensor);
  return skipped == 0 ? ""
                      : fmt::format("{}: {} tensors of multi-token prediction (layer {} on) are left out", dir, skipped,
                                    model.layer_count());
}

std::string import_hf_weights(Engine& engine, const std::string& dir) {
  std::string note = check_hf_folder(engine.plan.model, dir);
  const SafetensorsSet files = open_safetensors_folder(dir);
  for (const HfTensor& tensor : choose_names(engine.plan.model, files)) {
    const TraceScope scope(engine.stream.trace(), Work::checkpoint, "read_tensor");
    if (engine.params.has(tensor.param))
      read_held(files, tensor, engine.params.find(tensor.param));  // else of another stage
  }
  check_tied_head(files, engine);
  refresh_weights(engine);
  return note;
}

void export_hf_weights(const Engine& engine, const std::string& dir, DType dtype, const std::string& source_dir,
                       int64_t shard_bytes) {
  MW_CHECK(engine.plan.mesh.world == 1, "export from a process that holds a part of the model");
  const std::vector<HfTensor> names = hf_tensors(engine.plan.model);
  const std::string config = write_hf_config(engine.plan.model, dtype == DType::bf16 ? "bfloat16" : "float32");
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error)
    fail(Exit::data, fmt::format("cannot create {}: {}", dir, error.message()), "check the path and its permissions");
  if (path_exists(dir + "/model.safetensors.index.json") || path_exists(dir + "/model.safetensors"))
    fail(Exit::data, fmt::format("{} already holds a model", dir), "export into a new folder");
  const std::vector<Shard> shards = split_shards(names, dtype, shard_bytes);
  nlohmann::ordered_json index;
  int64_t total = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    SafetensorsWriter writer;
    writer.set_metadata("format", "pt");
    for (const HfTensor* t : shards[s].tensors)
      writer.declare(t->name, std::string(safetensors_dtype(written_dtype(*t, dtype))), t->shape);
    writer.begin(dir + "/" + file);
    for (const HfTensor* t : shards[s].tensors) {
      const std::vector<Parameter>& all = engine.params.all();
      const auto p = std::find_if(all.begin(), all.end(), [&](const Parameter& x) { return x.row.name == t->param; });
      write_tensor(writer, *t, p->master.as<float>() + t->begin, written_dtype(*t, dtype));
      index["weight_map"][t->name] = file;
      total += t->numel() * size_of(written_dtype(*t, dtype));
    }
    writer.finish();
  }
  if (shards.size() > 1) {
    index["metadata"]["total_size"] = total;
    write_text_file_atomically(dir + "/model.safetensors.index.json", index.dump(2) + "\n");
  }
  write_text_file_atomically(dir + "/config.json", config);
  if (!source_dir.empty()) copy_other_files(source_dir, dir);
  check_export(dir, names);
}

}  // namespace mw
