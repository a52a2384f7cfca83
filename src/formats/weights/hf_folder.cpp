#include "formats/weights/hf_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/hf_reader.h"

namespace mw {
namespace {

// Which names this folder uses for experts: one by one, fused per layer, or fused in MXFP4.
std::vector<HfTensor> choose_names(const ModelSpec& model, const SafetensorsSet& files) {
  const auto present = [&](const std::vector<HfTensor>& names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const HfTensor& t) { return files.find(stored_names(files, t).front()).file != nullptr; });
  };
  std::vector<HfTensor> fused = hf_fused_tensors(model), mxfp4 = hf_mxfp4_tensors(model);
  if (present(fused)) return fused;
  if (!mxfp4.empty() && present(mxfp4)) return mxfp4;
  // A config that asks for far more experts than there are tensors is refused before its names are listed.
  int64_t experts = 0;
  for (const LayerSpec& layer : model.layers) experts += layer.moe.experts;
  const auto found = static_cast<int64_t>(files.names().size());
  if (experts > found + 1000)
    fail(Exit::data,
         fmt::format("{}: found {} tensors, too few for the {} experts of config.json", files.path(), found, experts),
         kOtherWeights);
  return hf_tensors(model);
}

// Whether a tensor is of one of the `count` layers of multi-token prediction, which follow the last or have names of
// their own (ERNIE).
bool is_of_mtp_layer(const std::string& name, int64_t layers, int64_t count) {
  if (count > 0 && name.starts_with("model.mtp_")) return true;
  for (int64_t i = layers; i < layers + count; ++i)
    if (name.starts_with(fmt::format("model.layers.{}.", i))) return true;
  return false;
}

// Refuses what does not belong to the model; returns how many tensors of multi-token prediction there are.
int64_t check_extras(const SafetensorsSet& files, const std::vector<HfTensor>& names, const ModelSpec& model) {
  std::set<std::string> known;
  for (const HfTensor& t : names) {
    const std::vector<std::string> stored = stored_names(files, t);
    known.insert(stored.begin(), stored.end());
  }
  if (model.tie_embeddings) known.insert("lm_head.weight");
  int64_t skipped = 0;
  for (const std::string& name : files.names()) {
    const auto [file, entry] = files.find(name);
    const bool is_empty = file->data(*entry).empty();  // such as shared experts of a model without any
    if (known.count(name) != 0 || name.ends_with("rotary_emb.inv_freq") || is_empty) continue;
    if (is_of_mtp_layer(name, model.layer_count(), model.mtp_layers)) {
      ++skipped;
      continue;
    }
    fail(Exit::data, fmt::format("{}: tensor \"{}\" does not belong to this model", files.path(), printable(name, 120)),
         kOtherWeights);
  }
  return skipped;
}

}  // namespace

HfFolder open_hf_folder(const ModelSpec& model, const std::string& dir) {
  HfFolder folder;
  folder.files = open_safetensors_folder(dir);
  folder.tensors = choose_names(model, folder.files);
  const int64_t skipped = check_extras(folder.files, folder.tensors, model);
  for (const HfTensor& tensor : folder.tensors) check_hf_tensor(folder.files, tensor);
  if (skipped > 0)
    folder.note = fmt::format("{}: {} tensors of multi-token prediction (layer {} on) are left out", dir, skipped,
                              model.layer_count());
  return folder;
}

void check_tied_head(const HfFolder& folder, const ModelSpec& model) {
  const SafetensorsLocation head = folder.files.find("lm_head.weight");
  if (!head || !model.tie_embeddings) return;
  const SafetensorsLocation embed = folder.files.require("model.embed_tokens.weight");
  const auto a = head.file->data(*head.entry), b = embed.file->data(*embed.entry);
  if (head.entry->dtype != embed.entry->dtype || !std::equal(a.begin(), a.end(), b.begin(), b.end()))
    fail(Exit::data,
         fmt::format("{}: lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings is true",
                     folder.files.path()),
         "set tie_word_embeddings to false in config.json, or remove lm_head.weight from the weights");
}

}  // namespace mw
