#include "config/presets.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

// X-MoE table 3 and Piper V-D: two matrices per expert, multi-head attention, no dense layers.
NativeModel paper_model(int64_t width, int64_t expert_width, int64_t experts, int64_t top_k, int64_t layers,
                        int64_t heads) {
  NativeModel table;
  table.vocab = 50304;  // GPT-2's vocabulary rounded up, as X-MoE's training scripts use
  table.width = width;
  table.layers = layers;
  table.heads = heads;
  table.experts = experts;
  table.top_k = top_k;
  table.expert_width = expert_width;
  table.activation = Activation::gelu;
  table.renormalise = false;
  table.init_std = 0.014;
  return table;
}

NativeModel mixtral_8x7b() {
  NativeModel table;
  table.vocab = 32000;
  table.width = 4096;
  table.layers = 32;
  table.heads = 32;
  table.kv_heads = 8;
  table.experts = 8;
  table.top_k = 2;
  table.expert_width = 14336;
  table.rope_theta = 1e6;
  table.norm_eps = 1e-5;
  return table;
}

NativeModel qwen3(int64_t width, int64_t expert_width, int64_t layers, int64_t heads) {
  NativeModel table;
  table.vocab = 151936;
  table.width = width;
  table.layers = layers;
  table.heads = heads;
  table.kv_heads = 4;
  table.head_dim = 128;
  table.qk_norm = QkNorm::per_head;
  table.experts = 128;
  table.top_k = 8;
  table.expert_width = expert_width;
  table.rope_theta = 1e6;
  return table;
}

NativeModel olmoe_1b_7b() {
  NativeModel table;
  table.vocab = 50304;
  table.width = 2048;
  table.layers = 16;
  table.heads = 16;
  table.qk_norm = QkNorm::full_width;
  table.experts = 64;
  table.top_k = 8;
  table.expert_width = 1024;
  table.renormalise = false;
  table.norm_eps = 1e-5;
  return table;
}

NativeModel latent_attention(int64_t heads, int64_t q_rank) {
  NativeModel table;
  table.attention = AttentionKind::latent;
  table.heads = heads;
  table.q_rank = q_rank;
  table.kv_rank = 512;
  table.nope_dim = 128;
  table.rope_dim = 64;
  table.value_dim = 128;
  return table;
}

NativeModel deepseek_v2_lite() {
  NativeModel table = latent_attention(16, 0);
  table.vocab = 102400;
  table.width = 2048;
  table.layers = 27;
  table.dense_layers = 1;
  table.dense_width = 10944;
  table.experts = 64;
  table.top_k = 6;
  table.expert_width = 1408;
  table.shared_experts = 2;
  table.renormalise = false;
  return table;
}

NativeModel deepseek_v3() {
  NativeModel table = latent_attention(128, 1536);
  table.vocab = 129280;
  table.width = 7168;
  table.layers = 61;
  table.dense_layers = 3;
  table.dense_width = 18432;
  table.experts = 256;
  table.top_k = 8;
  table.expert_width = 2048;
  table.shared_experts = 1;
  table.score = ScoreFunction::sigmoid;
  table.selection_bias = true;
  table.routed_scale = 2.5;
  table.expert_groups = 8;
  table.kept_groups = 4;
  table.group_best = 2;
  return table;
}

YarnSpec deepseek_yarn(double mscale) { return {40, mscale, mscale, 32, 1, 4096}; }

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"x-moe-small", paper_model(2048, 1408, 64, 6, 28, 16)},
      {"x-moe-medium", paper_model(5120, 1536, 128, 6, 28, 40)},
      {"x-moe-large", paper_model(7168, 2048, 256, 8, 28, 56)},
      {"x-moe-super", paper_model(7168, 2560, 256, 8, 61, 56)},
      {"piper-m10b-16", paper_model(5120, 20480, 16, 2, 32, 40)},
      {"piper-m10b-128", paper_model(5120, 20480, 128, 2, 32, 40)},
      {"piper-m10b-256", paper_model(5120, 20480, 256, 2, 32, 40)},
      {"mixtral-8x7b", mixtral_8x7b(), "mixtral", 0.02},
      {"qwen3-30b-a3b", qwen3(2048, 768, 48, 32), "qwen3_moe", 0.001},
      {"qwen3-235b-a22b", qwen3(4096, 1536, 94, 64), "qwen3_moe", 0.001},
      {"olmoe-1b-7b", olmoe_1b_7b(), "olmoe", 0.01},
      {"deepseek-v2-lite", deepseek_v2_lite(), "deepseek_v2", 0.001, true, deepseek_yarn(0.707)},
      {"deepseek-v3", deepseek_v3(), "deepseek_v3", 0.001, true, deepseek_yarn(1)},
  };
  return all;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

const Preset& find_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return preset;
  fail(Exit::config,
       fmt::format("model.preset = \"{}\" is not known{}", printable(name), did_you_mean(name, preset_names())),
       fmt::format("use one of {}", fmt::join(preset_names(), ", ")));
}

}  // namespace mw
