#include "config/hf_attention.h"

#include <cmath>

#include "config/hf_rope.h"

namespace mw {
namespace {

using nlohmann::ordered_json;

// Of parts of a head, before they are added.
constexpr int64_t kMostDim = 1 << 14;

// Whether a layer without a layer_types has the window.
bool has_window(const HfFields& f, const HfFamily& family, int64_t layer) {
  if (family.windows == HfWindows::all) return true;
  if (family.windows == HfWindows::alternate) return layer % 2 == 0;
  const int64_t border = f.integer_or("max_window_layers", family.window_border);
  return family.windows == HfWindows::every_other ? layer % 2 == 0 && layer < border : layer >= border;
}

// Of all layers that have one; 0: none has. A null is no window, and an absent key is the family's default.
int64_t read_window(const HfFields& f, const HfFamily& family) {
  if (family.windows_by_flag && !f.flag_or("use_sliding_window", false)) return 0;
  return f.integer_or("sliding_window", f.is_null("sliding_window") ? 0 : family.default_window);
}

void read_bias(const HfFields& f, const HfFamily& family, AttentionSpec& a) {
  if (!f.flag_or(family.bias_key, family.bias_by_default)) return;
  if (family.bias == HfBias::none) f.unsupported(fmt::format("{} = true", family.bias_key));
  a.qkv_bias = true;
  a.output_bias = family.bias == HfBias::all;
}

// The first elements of a head, which are rotated; 0: all.
int64_t read_rotary_dim(const HfFields& f, const HfFamily& family, const HfRope& rope, int64_t head_dim) {
  if (!family.rotates_part) {
    if (rope.partial.value_or(1) != 1) f.unsupported("a partial_rotary_factor other than 1");
    return 0;
  }
  if (!rope.partial && has_name(family.rotary_dim)) {
    const int64_t rotated = f.integer(family.rotary_dim);
    if (rotated < 2) f.wrong(family.rotary_dim, "at least 2", f.raw(family.rotary_dim));
    return rotated == head_dim ? 0 : rotated;
  }
  const double factor = rope.partial ? *rope.partial : f.real("partial_rotary_factor");
  if (!(factor > 0 && factor <= 1)) f.wrong("partial_rotary_factor", "a number above 0, at most 1", factor);
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  return rotated == head_dim ? 0 : std::max<int64_t>(rotated, 1);
}

// The partial_rotary_factor from which read_rotary_dim computes this rope_dim again.
double rotary_factor(const AttentionSpec& a) {
  const auto rotated = static_cast<double>(a.rope_dim()), all = static_cast<double>(a.head_dim), factor = rotated / all;
  return all * factor < rotated ? std::nextafter(factor, 2.0) : factor;
}

AttentionSpec read_grouped(const HfFields& f, const HfFamily& family, int64_t width) {
  AttentionSpec a;
  a.heads = f.integer("num_attention_heads");
  // null means as many as heads; absent would mean a default of the family's class.
  const bool all_heads = f.is_null("num_key_value_heads");
  a.kv_heads = all_heads ? a.heads : f.integer("num_key_value_heads");
  if (a.heads < 1 || a.heads > (1 << 16)) f.wrong("num_attention_heads", "1 to 65536", f.raw("num_attention_heads"));
  if (f.has("head_dim")) a.head_dim = f.integer("head_dim");
  else if (width % a.heads != 0)
    f.wrong("hidden_size", fmt::format("a multiple of num_attention_heads = {} where head_dim is absent", a.heads),
            f.raw("hidden_size"));
  else a.head_dim = width / a.heads;
  const HfRope rope = read_hf_rope(f, family.stretches_theta ? a.head_dim : 0);
  if (family.yarn_by_default && !rope.has_type)
    f.unsupported(fmt::format("a {} model without the rope_type of rope_scaling or rope_parameters", family.name));
  a.rope_theta = rope.theta;
  a.yarn = rope.yarn;
  a.rotary_dim = read_rotary_dim(f, family, rope, a.head_dim);
  if (!has_name(family.qk_norm_key) || f.flag(family.qk_norm_key)) a.qk_norm = family.qk_norm;
  a.norm_after_rotary = family.norm_after_rotary;
  a.sinks = family.sinks;
  a.rope_pairs = family.rope_pairs;
  read_bias(f, family, a);
  if (family.clips_qkv) {
    a.clip_qkv = f.real_or("clip_qkv", 0.0);
    if (f.has("clip_qkv") && !(a.clip_qkv > 0)) f.wrong("clip_qkv", "null or a positive number", f.raw("clip_qkv"));
  }
  return a;
}

AttentionSpec read_latent(const HfFields& f, const HfFamily& family) {
  AttentionSpec a;
  a.kind = AttentionKind::latent;
  a.heads = f.integer("num_attention_heads");
  a.kv_heads = f.integer_or("num_key_value_heads", a.heads);
  if (a.kv_heads != a.heads)
    f.wrong("num_key_value_heads", fmt::format("num_attention_heads = {}", a.heads), f.raw("num_key_value_heads"));
  a.latent.q_rank = f.has("q_lora_rank") ? f.integer("q_lora_rank") : 0;
  a.latent.kv_rank = f.integer("kv_lora_rank");
  a.latent.nope_dim = f.integer("qk_nope_head_dim");
  a.latent.rope_dim = f.integer("qk_rope_head_dim");
  a.latent.value_dim = f.integer("v_head_dim");
  if (a.latent.nope_dim < 1 || a.latent.nope_dim > kMostDim)
    f.wrong("qk_nope_head_dim", "1 to 16384", f.raw("qk_nope_head_dim"));
  if (a.latent.rope_dim < 1 || a.latent.rope_dim > kMostDim)
    f.wrong("qk_rope_head_dim", "1 to 16384", f.raw("qk_rope_head_dim"));
  a.head_dim = a.latent.nope_dim + a.latent.rope_dim;
  const HfRope rope = read_hf_rope(f);
  a.rope_theta = rope.theta;
  a.yarn = rope.yarn;
  a.rotary_dim = read_rotary_dim(f, family, rope, a.head_dim);
  const bool neighbours =
      !family.reads_interleave || (!f.is_null("rope_interleave") && f.flag_or("rope_interleave", true));
  a.rope_pairs = neighbours ? RopePairs::neighbours : RopePairs::halves;
  read_bias(f, family, a);
  return a;
}

void write_latent(const AttentionSpec& a, ordered_json& out) {
  out["num_key_value_heads"] = a.heads;
  out["q_lora_rank"] = a.latent.q_rank > 0 ? ordered_json(a.latent.q_rank) : ordered_json(nullptr);
  out["kv_lora_rank"] = a.latent.kv_rank;
  out["qk_nope_head_dim"] = a.latent.nope_dim;
  out["qk_rope_head_dim"] = a.latent.rope_dim;
  out["v_head_dim"] = a.latent.value_dim;
  out["rope_interleave"] = a.rope_pairs == RopePairs::neighbours;
}

}  // namespace

AttentionSpec read_hf_attention(const HfFields& config, const HfFamily& family, int64_t width) {
  return family.attention == AttentionKind::latent ? read_latent(config, family) : read_grouped(config, family, width);
}

std::vector<int64_t> read_hf_windows(const HfFields& config, const HfFamily& family, int64_t layers) {
  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  const int64_t window = read_window(config, family);
  if (window == 0) return windows;
  if (family.windows == HfWindows::none) {
    if (window < config.integer_or("max_position_embeddings", window + 1))
      config.unsupported("sliding_window attention");
    return windows;
  }
  const bool has_types = family.windows != HfWindows::all && config.has("layer_types");
  const nlohmann::json types = has_types ? config.raw("layer_types") : nlohmann::json();
  if (has_types && (!types.is_array() || std::ssize(types) != layers))
    config.wrong("layer_types", fmt::format("a list of num_hidden_layers = {} words", layers), types);
  for (int64_t i = 0; i < layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool slides = has_types ? types[at] == "sliding_attention" : has_window(config, family, i);
    if (has_types && !slides && types[at] != "full_attention")
      config.wrong("layer_types", "\"full_attention\" or \"sliding_attention\"", types[at]);
    if (slides) windows[at] = window;
  }
  return windows;
}

void write_hf_windows(const ModelSpec& model, const HfFamily& family, ordered_json& config) {
  // gpt-oss cannot be run without one, whether a layer has it or not.
  config["sliding_window"] = family.windows == HfWindows::alternate ? ordered_json(family.default_window) : nullptr;
  std::vector<const char*> types;
  for (const LayerSpec& layer : model.layers) {
    types.push_back(layer.attention.window > 0 ? "sliding_attention" : "full_attention");
    if (layer.attention.window > 0) config["sliding_window"] = layer.attention.window;
  }
  const bool slides = !config["sliding_window"].is_null();
  if (slides && family.windows != HfWindows::all) config["layer_types"] = types;
  if (family.windows_by_flag) config["use_sliding_window"] = slides;
}

void write_hf_attention(const AttentionSpec& attention, const HfFamily& family, ordered_json& config) {
  config["num_attention_heads"] = attention.heads;
  config["rope_theta"] = attention.rope_theta;
  config["rope_scaling"] = write_hf_rope_scaling(attention.yarn);
  if (family.yarn_by_default && config["rope_scaling"].is_null()) config["rope_scaling"] = {{"rope_type", "default"}};
  const YarnSpec& yarn = attention.yarn;
  if (yarn.factor > 1)
    config["max_position_embeddings"] = std::llround(yarn.factor * static_cast<double>(yarn.positions));
  config[family.bias_key] = attention.qkv_bias;
  if (attention.is_latent()) return write_latent(attention, config);
  config["num_key_value_heads"] = attention.kv_heads;
  config["head_dim"] = attention.head_dim;
  // transformers before 5.24 takes no notice of rotary_dim.
  if (has_name(family.rotary_dim)) config[family.rotary_dim] = attention.rope_dim();
  if (family.rotates_part) config["partial_rotary_factor"] = rotary_factor(attention);
  if (has_name(family.qk_norm_key)) config[family.qk_norm_key] = attention.qk_norm != QkNorm::none;
  if (family.clips_qkv)
    config["clip_qkv"] = attention.clip_qkv > 0 ? ordered_json(attention.clip_qkv) : ordered_json(nullptr);
}

}  // namespace mw
