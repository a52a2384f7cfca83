#include "config/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "config/hf_deepseek.h"
#include "config/hf_fields.h"
#include "config/hf_rope.h"

namespace mw {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const std::vector<std::string> kFamilies = {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"};

// Which layers are MoE in Qwen3-MoE: (i + 1) % decoder_sparse_step == 0 and i not in mlp_only_layers.
std::vector<bool> find_sparse_layers(const HfFields& f, int64_t layers) {
  const int64_t step = f.integer_or("decoder_sparse_step", 1);
  if (step < 1) f.wrong("decoder_sparse_step", "at least 1", f.raw("decoder_sparse_step"));
  std::vector<bool> sparse;
  for (int64_t i = 0; i < layers; ++i) sparse.push_back((i + 1) % step == 0);
  if (!f.has("mlp_only_layers")) return sparse;
  const json& only = f.raw("mlp_only_layers");
  if (!only.is_array()) f.wrong("mlp_only_layers", "a list of layer numbers", only);
  for (const json& item : only) {
    if (!item.is_number_integer()) f.wrong("mlp_only_layers", "a list of layer numbers", only);
    const auto layer = item.get<int64_t>();
    if (layer >= 0 && layer < layers) sparse[static_cast<size_t>(layer)] = false;
  }
  return sparse;
}

// fp8 weights with a scale for each block of 128 x 128, which import multiplies out; nothing else.
void check_quantization(const HfFields& q) {
  const bool blocks = q.has("weight_block_size") && q.raw("weight_block_size") == json({128, 128});
  if (!blocks || q.text("quant_method") != "fp8")
    q.unsupported("quantization other than fp8 with weight_block_size [128, 128]");
}

void check_common(const HfFields& f) {
  // Real configs of some families leave hidden_act out; all then mean silu.
  const std::string act = f.has("hidden_act") ? f.text("hidden_act") : "silu";
  if (act != "silu") f.unsupported(fmt::format("hidden_act \"{}\"", printable(act)));
  if (f.flag_or("attention_bias", false)) f.unsupported("attention_bias = true");
  const bool window_off = f.has("use_sliding_window") && !f.flag_or("use_sliding_window", false);
  if (f.has("sliding_window") && !window_off) {
    const int64_t window = f.integer("sliding_window");
    if (window < f.integer_or("max_position_embeddings", window + 1)) f.unsupported("sliding_window attention");
  }
  if (f.has("quantization_config")) check_quantization(HfFields(f.raw("quantization_config"), f.where()));
}

// Mixtral, Qwen3-MoE and OLMoE.
void read_grouped(const HfFields& f, ModelSpec& model) {
  const std::string& family = model.family;
  model.aux_loss_coef = f.real("router_aux_loss_coef");

  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  a.heads = f.integer("num_attention_heads");
  // null means as many as heads; absent would mean a default of the family's class.
  const bool all_heads = f.is_null("num_key_value_heads");
  a.kv_heads = all_heads ? a.heads : f.integer("num_key_value_heads");
  if (a.heads < 1 || a.heads > (1 << 16)) f.wrong("num_attention_heads", "1 to 65536", f.raw("num_attention_heads"));
  if (f.has("head_dim")) a.head_dim = f.integer("head_dim");
  else if (model.width % a.heads != 0)
    f.wrong("hidden_size", fmt::format("a multiple of num_attention_heads = {} where head_dim is absent", a.heads),
            f.raw("hidden_size"));
  else a.head_dim = model.width / a.heads;
  a.rope_theta = read_hf_rope(f, false).theta;
  if (family == "qwen3_moe") a.qk_norm = QkNorm::per_head;
  if (family == "olmoe") {
    a.qk_norm = QkNorm::full_width;
    a.clip_qkv = f.real_or("clip_qkv", 0.0);
    if (f.has("clip_qkv") && !(a.clip_qkv > 0)) f.wrong("clip_qkv", "null or a positive number", f.raw("clip_qkv"));
  }

  layer.feed_forward = FeedForwardKind::moe;
  layer.moe.experts = f.integer_of({"num_experts", "num_local_experts", "n_routed_experts"});
  layer.moe.top_k = f.integer("num_experts_per_tok");
  layer.moe.width = f.integer(family == "qwen3_moe" ? "moe_intermediate_size" : "intermediate_size");
  layer.moe.renormalise = family == "mixtral" || f.flag("norm_topk_prob");

  const int64_t layers = f.integer("num_hidden_layers");
  if (layers < 1 || layers > 10000) f.wrong("num_hidden_layers", "1 to 10000", f.raw("num_hidden_layers"));
  const std::vector<bool> sparse =
      family == "qwen3_moe" ? find_sparse_layers(f, layers) : std::vector<bool>(static_cast<size_t>(layers), true);
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec l = layer;
    if (!sparse[static_cast<size_t>(i)]) {
      l.feed_forward = FeedForwardKind::dense;
      l.dense_width = f.integer("intermediate_size");
      l.moe = MoeSpec{};
    }
    model.layers.push_back(l);
  }
}

bool is_sparse(const LayerSpec& layer) { return layer.feed_forward == FeedForwardKind::moe; }

const char* architecture_of(const std::string& family) {
  if (family == "mixtral") return "MixtralForCausalLM";
  if (family == "qwen3_moe") return "Qwen3MoeForCausalLM";
  if (family == "olmoe") return "OlmoeForCausalLM";
  return family == "deepseek_v2" ? "DeepseekV2ForCausalLM" : "DeepseekV3ForCausalLM";
}

void write_grouped(const ModelSpec& model, const LayerSpec& sparse, ordered_json& out) {
  const bool qwen = model.family == "qwen3_moe", olmoe = model.family == "olmoe", mixtral = model.family == "mixtral";
  const AttentionSpec& a = sparse.attention;
  int64_t dense_width = sparse.moe.width * sparse.moe.top_k;
  std::vector<int64_t> dense_layers;
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    if (is_sparse(layer)) continue;
    dense_width = layer.dense_width;
    dense_layers.push_back(i);
  }
  out["num_key_value_heads"] = a.kv_heads;
  out["head_dim"] = a.head_dim;
  out["rope_scaling"] = nullptr;
  out["router_aux_loss_coef"] = model.aux_loss_coef;
  out["sliding_window"] = nullptr;
  out[mixtral ? "num_local_experts" : "num_experts"] = sparse.moe.experts;
  if (qwen) {
    out["moe_intermediate_size"] = sparse.moe.width;
    out["intermediate_size"] = dense_width;
    out["decoder_sparse_step"] = 1;
    out["mlp_only_layers"] = dense_layers;
    out["use_sliding_window"] = false;
  } else {
    out["intermediate_size"] = sparse.moe.width;
  }
  if (!mixtral) out["norm_topk_prob"] = sparse.moe.renormalise;
  if (olmoe) out["clip_qkv"] = a.clip_qkv > 0 ? ordered_json(a.clip_qkv) : ordered_json(nullptr);
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
  const std::string family = f.text("model_type");
  if (std::find(kFamilies.begin(), kFamilies.end(), family) == kFamilies.end())
    fail(Exit::config,
         fmt::format("{}: model_type \"{}\" is not supported{}", where, printable(family),
                     did_you_mean(family, kFamilies)),
         fmt::format("use a model of one of the families {}", fmt::join(kFamilies, ", ")));
  check_common(f);

  ModelSpec model;
  model.family = family;
  model.vocab = f.integer("vocab_size");
  model.width = f.integer("hidden_size");
  model.norm_eps = family == "olmoe" ? f.real_or("rms_norm_eps", 1e-5) : f.real("rms_norm_eps");
  model.tie_embeddings = f.flag_or("tie_word_embeddings", false);
  model.init_std = f.real_or("initializer_range", 0.02);
  if (is_deepseek(family)) read_deepseek(f, model);
  else read_grouped(f, model);
  validate(model, where);
  return model;
}

ModelSpec read_hf_config(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path, size_t{16} << 20);
  } catch (const Error& error) {
    fail(Exit::config, error.what(),
         "set model = \"hf:DIR\" to a Hugging Face model folder, which contains a config.json");
  }
  return parse_hf_config(text, path);
}

std::string write_hf_config(const ModelSpec& model, const std::string& torch_dtype) {
  if (std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end())
    fail(Exit::unsupported, fmt::format("a {} model cannot be written as a Hugging Face config.json", model.family),
         fmt::format("export a model of one of the families {}", fmt::join(kFamilies, ", ")));
  if (model.moe_layer_count() == 0)
    fail(Exit::unsupported, "a model without MoE layers cannot be exported: every supported Hugging Face family is MoE",
         "set model.dense_layers below model.layers");
  const LayerSpec& sparse = *std::find_if(model.layers.begin(), model.layers.end(), is_sparse);
  ordered_json out;
  out["architectures"] = {architecture_of(model.family)};
  out["model_type"] = model.family;
  out["vocab_size"] = model.vocab;
  out["hidden_size"] = model.width;
  out["num_hidden_layers"] = model.layer_count();
  out["num_attention_heads"] = sparse.attention.heads;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = model.norm_eps;
  out["rope_theta"] = sparse.attention.rope_theta;
  out["tie_word_embeddings"] = model.tie_embeddings;
  out["initializer_range"] = model.init_std;
  out["num_experts_per_tok"] = sparse.moe.top_k;
  out["attention_bias"] = false;
  if (is_deepseek(model.family)) write_deepseek(model, out);
  else write_grouped(model, sparse, out);
  out["torch_dtype"] = torch_dtype;
  return out.dump(2) + "\n";
}

std::string extend_hf_config(const std::string& config, const std::string& source, const std::string& where) {
  // What our own keys say in another way, and what is true of the source's weights only.
  static const std::vector<std::string> kLeftOut = {
      "rope_parameters",
      "num_experts",
      "num_local_experts",
      "n_routed_experts",
      "use_sliding_window",
      "sliding_window",
      "dtype",
      "torch_dtype",
      "quantization_config",
      "num_nextn_predict_layers",
      "_name_or_path",
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
