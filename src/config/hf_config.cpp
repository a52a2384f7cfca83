#include "config/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "config/hf_attention.h"
#include "config/hf_families.h"
#include "config/hf_feed_forward.h"

namespace mw {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// fp8 weights with a scale for each block of 128 x 128, which import multiplies out, or experts in MXFP4; nothing else.
void check_quantization(const HfFields& q, const HfFamily& family) {
  if (family.transposed_experts) {
    if (q.text("quant_method") != "mxfp4") q.unsupported("quantization other than mxfp4");
    return;
  }
  const bool blocks = q.has("weight_block_size") && q.raw("weight_block_size") == json({128, 128});
  if (!blocks || q.text("quant_method") != "fp8")
    q.unsupported("quantization other than fp8 with weight_block_size [128, 128]");
}

void check_common(const HfFields& f, const HfFamily& family) {
  // Real configs of some families leave hidden_act out; all then mean silu.
  const std::string act = f.has("hidden_act") ? f.text("hidden_act") : "silu";
  if (act != "silu") f.unsupported(fmt::format("hidden_act \"{}\"", printable(act)));
  for (const char* key : {"attention_dropout", "router_jitter_noise"})  // in training, here there is none
    if (f.real_or(key, 0) != 0) f.unsupported(fmt::format("{} = {}", key, printable(f.raw(key).dump())));
  if (!f.flag_or("is_causal", true)) f.unsupported("is_causal = false");
  if (f.has("quantization_config")) check_quantization(HfFields(f.raw("quantization_config"), f.where()), family);
}

// The text of a config.json.
json parse_object(const std::string& text, const std::string& where) {
  json config = parse_json(text, where, Exit::config);
  if (!config.is_object())
    fail(Exit::config, fmt::format("{}: expected a JSON object, got {}", where, config.type_name()),
         "set model = \"hf:DIR\" to a folder with the config.json of a Hugging Face model");
  return config;
}

}  // namespace

ModelSpec parse_hf_config(const std::string& text, const std::string& where) {
  const json config = parse_object(text, where);
  const HfFields f(config, where);
  const std::string type = f.text("model_type");
  const HfFamily* const family = find_hf_family(type);
  if (family == nullptr)
    fail(Exit::config,
         fmt::format("{}: model_type \"{}\" is not supported{}", where, printable(type),
                     did_you_mean(type, hf_family_names())),
         fmt::format("use a model of one of the families {}", fmt::join(hf_family_names(), ", ")));
  check_common(f, *family);

  ModelSpec model;
  model.family = family->name;
  model.vocab = f.integer("vocab_size");
  model.width = f.integer("hidden_size");
  model.norm_eps = type == "olmoe" ? f.real_or("rms_norm_eps", 1e-5) : f.real("rms_norm_eps");
  model.tie_embeddings = f.flag_or("tie_word_embeddings", family->ties_by_default);
  model.init_std = f.real_or("initializer_range", 0.02);
  read_hf_layers(f, *family, read_hf_attention(f, *family, model.width), model);
  validate(model, where);
  return model;
}

ModelSpec read_hf_config(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path, size_t{16} << 20);
  } catch (const Error& error) {
    fail(Exit::config, error.what(),
         "set model = \"hf:DIR\" to a Hugging Face model folder, which contains a config.json; DIR is relative to the "
         "folder where a command starts");
  }
  return parse_hf_config(text, path);
}

std::string write_hf_config(const ModelSpec& model, const std::string& torch_dtype) {
  const HfFamily* const family = find_hf_family(model.family);
  if (family == nullptr)
    fail(Exit::unsupported, fmt::format("a {} model cannot be written as a Hugging Face config.json", model.family),
         fmt::format("export a model of one of the families {}", fmt::join(hf_family_names(), ", ")));
  if (model.moe_layer_count() == 0)
    fail(Exit::unsupported, "a model without MoE layers cannot be exported: every supported Hugging Face family is MoE",
         "set model.dense_layers below model.layers");
  ordered_json out;
  out["architectures"] = {family->architecture};
  out["model_type"] = model.family;
  out["vocab_size"] = model.vocab;
  out["hidden_size"] = model.width;
  out["num_hidden_layers"] = model.layer_count();
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = model.norm_eps;
  out["tie_word_embeddings"] = model.tie_embeddings;
  out["initializer_range"] = model.init_std;
  write_hf_attention(model.layers.front().attention, *family, out);
  write_hf_windows(model, *family, out);
  write_hf_layers(model, *family, out);
  out["torch_dtype"] = torch_dtype;
  return out.dump(2) + "\n";
}

std::string extend_hf_config(const std::string& config, const std::string& source, const std::string& where) {
  // What our own keys say in another way, and what is true of the source's weights only.
  static const std::vector<std::string> kLeftOut = {
      "rope_parameters",      "num_experts",           "num_experts_per_tok",      "num_local_experts",
      "n_routed_experts",     "partial_rotary_factor", "moe_intermediate_size",    "num_shared_expert",
      "layer_types",          "use_sliding_window",    "sliding_window",           "dtype",
      "torch_dtype",          "quantization_config",   "num_nextn_predict_layers", "_name_or_path",
      "transformers_version",
  };
  ordered_json out = ordered_json::parse(config);
  const json more = parse_object(source, where);
  for (const auto& [key, value] : more.items())
    if (!out.contains(key) && std::find(kLeftOut.begin(), kLeftOut.end(), key) == kLeftOut.end()) out[key] = value;
  return out.dump(2) + "\n";
}

std::string hf_weight_dtype(const std::string& config, const std::string& where) {
  const json object = parse_object(config, where);
  const HfFields f(object, where);
  for (const char* key : {"torch_dtype", "dtype"})
    if (f.has(key)) return f.text(key);
  return "";
}

}  // namespace mw
