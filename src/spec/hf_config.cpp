#include "spec/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

using nlohmann::json;

// Typed access to one config object, with the file and field in every message.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int64_t integer(const char* key) const {
    const json& value = get(key, "an integer");
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62)
      wrong(key, "an integer below 2^62", value);
    if (!value.is_number_integer()) wrong(key, "an integer", value);
    return value.get<int64_t>();
  }
  int64_t integer_or(const char* key, int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  double real(const char* key) const {
    const json& value = get(key, "a number");
    if (!value.is_number()) wrong(key, "a number", value);
    return value.get<double>();
  }
  double real_or(const char* key, double fallback) const { return has(key) ? real(key) : fallback; }
  bool flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) wrong(key, "true or false", object_.at(key));
    return object_.at(key).get<bool>();
  }
  bool flag(const char* key) const {
    get(key, "true or false");
    return flag_or(key, false);
  }
  std::string text(const char* key) const {
    const json& value = get(key, "a string");
    if (!value.is_string()) wrong(key, "a string", value);
    return value.get<std::string>();
  }
  const json& raw(const char* key) const { return object_.at(key); }
  const std::string& where() const { return where_; }

  [[noreturn]] void wrong(const char* key, const std::string& expected, const json& got) const {
    fail(Exit::config, fmt::format("{}: \"{}\" expects {}, got {}", where_, key, expected, printable(got.dump())),
         "check the model's config.json");
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(Exit::unsupported, fmt::format("{}: {} is not built yet", where_, what),
         "docs/limits.md lists what is missing");
  }

 private:
  const json& get(const char* key, const char* expected) const {
    if (!has(key))
      fail(Exit::config, fmt::format("{}: \"{}\" is missing, expected {}", where_, key, expected),
           "is this the model's config.json?");
    return object_.at(key);
  }
  const json& object_;
  std::string where_;
};

double read_rope_theta(const Fields& f) {
  const auto check_default = [&](const json& rope, const char* key) {
    for (const char* type_key : {"rope_type", "type"}) {
      if (!rope.contains(type_key) || rope.at(type_key).is_null()) continue;
      if (!rope.at(type_key).is_string()) f.wrong(key, "an object with a string rope_type", rope);
      const std::string type = rope.at(type_key).get<std::string>();
      if (type != "default") f.unsupported(fmt::format("rope type \"{}\"", printable(type)));
    }
  };
  std::optional<double> theta;
  if (f.has("rope_parameters")) {
    const json& rope = f.raw("rope_parameters");
    if (!rope.is_object()) f.wrong("rope_parameters", "an object", rope);
    check_default(rope, "rope_parameters");
    const Fields inner(rope, f.where() + ": rope_parameters");
    if (inner.has("rope_theta")) theta = inner.real("rope_theta");
  }
  if (f.has("rope_scaling")) {
    const json& scaling = f.raw("rope_scaling");
    if (!scaling.is_object()) f.wrong("rope_scaling", "null or an object", scaling);
    check_default(scaling, "rope_scaling");
  }
  if (f.has("rope_theta")) {
    const double outer = f.real("rope_theta");
    if (theta && *theta != outer)
      f.wrong("rope_theta", fmt::format("the {} of rope_parameters", *theta), f.raw("rope_theta"));
    theta = outer;
  }
  if (!theta) f.real("rope_theta");
  return *theta;
}

int64_t read_expert_count(const Fields& f) {
  std::optional<int64_t> count;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!f.has(key)) continue;
    const int64_t value = f.integer(key);
    if (count && *count != value) f.wrong(key, fmt::format("{} as under its other name", *count), f.raw(key));
    count = value;
  }
  return count ? *count : f.integer("num_experts");
}

// Which layers are MoE in Qwen3-MoE: (i + 1) % decoder_sparse_step == 0 and i not in mlp_only_layers.
std::vector<bool> find_sparse_layers(const Fields& f, int64_t layers) {
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

void check_common(const Fields& f) {
  // Real configs of some families leave hidden_act out; all three then mean silu.
  const std::string act = f.has("hidden_act") ? f.text("hidden_act") : "silu";
  if (act != "silu") f.unsupported(fmt::format("hidden_act \"{}\"", printable(act)));
  if (f.flag_or("attention_bias", false)) f.unsupported("attention_bias");
  const bool window_off = f.has("use_sliding_window") && !f.flag_or("use_sliding_window", false);
  if (f.has("sliding_window") && !window_off) {
    const int64_t window = f.integer("sliding_window");
    if (window < f.integer_or("max_position_embeddings", window + 1)) f.unsupported("sliding_window attention");
  }
  if (f.has("quantization_config")) f.unsupported("a quantised model");
}

}  // namespace

ModelSpec parse_hf_config(const std::string& text, const std::string& where) {
  const json config = parse_json(text, where, Exit::config);
  if (!config.is_object())
    fail(Exit::config, fmt::format("{}: expected a JSON object", where), "is this the model's config.json?");
  const Fields f(config, where);
  const std::string family = f.text("model_type");
  if (family == "deepseek_v2" || family == "deepseek_v3")
    f.unsupported(fmt::format("the {} family (latent attention)", family));
  if (family != "mixtral" && family != "qwen3_moe" && family != "olmoe")
    fail(Exit::config,
         fmt::format("{}: model_type \"{}\" is not known{}", where, printable(family),
                     did_you_mean(family, {"mixtral", "qwen3_moe", "olmoe"})),
         "one of mixtral, qwen3_moe, olmoe");
  check_common(f);

  ModelSpec model;
  model.family = family;
  model.vocab = f.integer("vocab_size");
  model.width = f.integer("hidden_size");
  model.norm_eps = family == "olmoe" ? f.real_or("rms_norm_eps", 1e-5) : f.real("rms_norm_eps");
  model.tie_embeddings = f.flag_or("tie_word_embeddings", false);
  model.init_std = f.real_or("initializer_range", 0.02);
  model.aux_loss_coef = f.real("router_aux_loss_coef");

  LayerSpec layer;
  AttentionSpec& a = layer.attention;
  a.heads = f.integer("num_attention_heads");
  // null means as many as heads; absent would mean a default of the family's class.
  const bool all_heads = config.contains("num_key_value_heads") && config.at("num_key_value_heads").is_null();
  a.kv_heads = all_heads ? a.heads : f.integer("num_key_value_heads");
  if (a.heads < 1 || a.heads > (1 << 16)) f.wrong("num_attention_heads", "1 to 65536", f.raw("num_attention_heads"));
  if (f.has("head_dim")) a.head_dim = f.integer("head_dim");
  else if (model.width % a.heads != 0)
    f.wrong("hidden_size", "a multiple of num_attention_heads when head_dim is absent", f.raw("hidden_size"));
  else a.head_dim = model.width / a.heads;
  a.rope_theta = read_rope_theta(f);
  if (family == "qwen3_moe") a.qk_norm = QkNorm::per_head;
  if (family == "olmoe") {
    a.qk_norm = QkNorm::full_width;
    a.clip_qkv = f.real_or("clip_qkv", 0.0);
    if (f.has("clip_qkv") && !(a.clip_qkv > 0)) f.wrong("clip_qkv", "null or a positive number", f.raw("clip_qkv"));
  }

  layer.feed_forward = FeedForwardKind::moe;
  layer.moe.experts = read_expert_count(f);
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
  validate(model, where);
  return model;
}

ModelSpec read_hf_config(const std::string& path) {
  std::string text;
  try {
    text = read_text_file(path, size_t{16} << 20);
  } catch (const Error& error) {
    fail(Exit::config, error.what(), "a Hugging Face model folder holds a config.json");
  }
  return parse_hf_config(text, path);
}

std::string write_hf_config(const ModelSpec& model, const std::string& torch_dtype) {
  const bool qwen = model.family == "qwen3_moe", olmoe = model.family == "olmoe", mixtral = model.family == "mixtral";
  if (!qwen && !olmoe && !mixtral)
    fail(Exit::unsupported, fmt::format("a {} model has no Hugging Face family to export to", model.family),
         "models that came from a Hugging Face folder can be exported");
  const LayerSpec* sparse = nullptr;
  const LayerSpec* dense = nullptr;
  std::vector<int64_t> dense_layers;
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    if (layer.feed_forward == FeedForwardKind::moe) sparse = &layer;
    else {
      dense = &layer;
      dense_layers.push_back(i);
    }
  }
  if (sparse == nullptr) fail(Exit::unsupported, "a model without MoE layers has no MoE family to export to");
  const AttentionSpec& a = sparse->attention;
  nlohmann::ordered_json out;
  out["architectures"] = {mixtral ? "MixtralForCausalLM" : qwen ? "Qwen3MoeForCausalLM" : "OlmoeForCausalLM"};
  out["model_type"] = model.family;
  out["vocab_size"] = model.vocab;
  out["hidden_size"] = model.width;
  out["num_hidden_layers"] = model.layer_count();
  out["num_attention_heads"] = a.heads;
  out["num_key_value_heads"] = a.kv_heads;
  out["head_dim"] = a.head_dim;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = model.norm_eps;
  out["rope_theta"] = a.rope_theta;
  out["rope_scaling"] = nullptr;
  out["tie_word_embeddings"] = model.tie_embeddings;
  out["initializer_range"] = model.init_std;
  out["router_aux_loss_coef"] = model.aux_loss_coef;
  out["num_experts_per_tok"] = sparse->moe.top_k;
  out["attention_bias"] = false;
  out["sliding_window"] = nullptr;
  out[mixtral ? "num_local_experts" : "num_experts"] = sparse->moe.experts;
  if (qwen) {
    out["moe_intermediate_size"] = sparse->moe.width;
    out["intermediate_size"] = dense != nullptr ? dense->dense_width : sparse->moe.width * sparse->moe.top_k;
    out["decoder_sparse_step"] = 1;
    out["mlp_only_layers"] = dense_layers;
    out["use_sliding_window"] = false;
  } else {
    out["intermediate_size"] = sparse->moe.width;
  }
  if (!mixtral) out["norm_topk_prob"] = sparse->moe.renormalise;
  if (olmoe) out["clip_qkv"] = a.clip_qkv > 0 ? nlohmann::ordered_json(a.clip_qkv) : nlohmann::ordered_json(nullptr);
  out["torch_dtype"] = torch_dtype;
  return out.dump(2) + "\n";
}

}  // namespace mw
