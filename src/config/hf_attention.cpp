#include "config/hf_attention.h"

#include <cmath>

#include "config/hf_rope.h"

namespace mw {
namespace {

using nlohmann::ordered_json;

// Of parts of a head, before they are added.
constexpr int64_t kMostDim = 1 << 14;

void check_unsupported(const HfFields& f) {
  if (f.flag_or("attention_bias", false)) f.unsupported("attention_bias = true");
  const bool window_off = f.has("use_sliding_window") && !f.flag_or("use_sliding_window", false);
  if (f.has("sliding_window") && !window_off) {
    const int64_t window = f.integer("sliding_window");
    if (window < f.integer_or("max_position_embeddings", window + 1)) f.unsupported("sliding_window attention");
  }
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
  a.rope_theta = read_hf_rope(f, false).theta;
  a.qk_norm = family.qk_norm;
  if (family.clips_qkv) {
    a.clip_qkv = f.real_or("clip_qkv", 0.0);
    if (f.has("clip_qkv") && !(a.clip_qkv > 0)) f.wrong("clip_qkv", "null or a positive number", f.raw("clip_qkv"));
  }
  return a;
}

AttentionSpec read_latent(const HfFields& f) {
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
  const HfRope rope = read_hf_rope(f, true);
  a.rope_theta = rope.theta;
  a.yarn = rope.yarn;
  a.rope_pairs = f.flag_or("rope_interleave", true) ? RopePairs::neighbours : RopePairs::halves;
  return a;
}

void write_latent(const AttentionSpec& a, ordered_json& out) {
  out["num_key_value_heads"] = a.heads;
  out["q_lora_rank"] = a.latent.q_rank > 0 ? ordered_json(a.latent.q_rank) : ordered_json(nullptr);
  out["kv_lora_rank"] = a.latent.kv_rank;
  out["qk_nope_head_dim"] = a.latent.nope_dim;
  out["qk_rope_head_dim"] = a.latent.rope_dim;
  out["v_head_dim"] = a.latent.value_dim;
  if (a.yarn.factor > 1)
    out["max_position_embeddings"] = std::llround(a.yarn.factor * static_cast<double>(a.yarn.positions));
  out["rope_interleave"] = a.rope_pairs == RopePairs::neighbours;
}

}  // namespace

AttentionSpec read_hf_attention(const HfFields& config, const HfFamily& family, int64_t width) {
  check_unsupported(config);
  return family.attention == AttentionKind::latent ? read_latent(config) : read_grouped(config, family, width);
}

void write_hf_attention(const AttentionSpec& attention, const HfFamily& family, ordered_json& config) {
  config["num_attention_heads"] = attention.heads;
  config["rope_theta"] = attention.rope_theta;
  config["rope_scaling"] = write_hf_rope_scaling(attention.yarn);
  config["attention_bias"] = false;
  if (attention.is_latent()) return write_latent(attention, config);
  config["num_key_value_heads"] = attention.kv_heads;
  config["head_dim"] = attention.head_dim;
  config["sliding_window"] = nullptr;
  if (family.moe_layers == HfMoeLayers::by_step) config["use_sliding_window"] = false;
  if (family.clips_qkv)
    config["clip_qkv"] = attention.clip_qkv > 0 ? ordered_json(attention.clip_qkv) : ordered_json(nullptr);
}

}  // namespace mw
