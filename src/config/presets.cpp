#include "config/presets.h"

#include <fmt/ranges.h>

#include <cmath>

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

NativeModel kimi_k2() {
  NativeModel table = deepseek_v3();
  table.vocab = 163840;
  table.heads = 64;
  table.dense_layers = 1;
  table.experts = 384;
  table.routed_scale = 2.827;
  table.rope_theta = 5e4;
  table.expert_groups = table.kept_groups = table.group_best = 1;
  return table;
}

// Router and experts of DeepSeek-V3 without groups, and one dense layer.
NativeModel sigmoid_router(int64_t experts, int64_t top_k, int64_t expert_width, double scale) {
  NativeModel table;
  table.dense_layers = 1;
  table.experts = experts;
  table.top_k = top_k;
  table.expert_width = expert_width;
  table.shared_experts = 1;
  table.score = ScoreFunction::sigmoid;
  table.selection_bias = true;
  table.routed_scale = scale;
  return table;
}

NativeModel dots_llm1() {
  NativeModel table = sigmoid_router(128, 6, 1408, 2.5);
  table.vocab = 152064;
  table.width = 4096;
  table.layers = 62;
  table.heads = 32;
  table.qk_norm = QkNorm::per_head;
  table.dense_width = 10944;
  table.shared_experts = 2;
  table.rope_theta = 1e7;
  table.norm_eps = 1e-5;
  return table;
}

NativeModel glm_4_5_air() {
  NativeModel table = sigmoid_router(128, 8, 1408, 1);
  table.vocab = 151552;
  table.width = 4096;
  table.layers = 46;
  table.heads = 96;
  table.kv_heads = 8;
  table.head_dim = 128;
  table.dense_width = 10944;
  table.rope_theta = 1e6;
  table.norm_eps = 1e-5;
  return table;
}

NativeModel glm_4_5() {
  NativeModel table = glm_4_5_air();
  table.width = 5120;
  table.layers = 92;
  table.qk_norm = QkNorm::per_head;
  table.dense_layers = 3;
  table.dense_width = 12288;
  table.experts = 160;
  table.expert_width = 1536;
  table.routed_scale = 2.5;
  return table;
}

void refine_glm(LayerSpec& layer, int64_t) {
  layer.attention.qkv_bias = true;
  layer.attention.rotary_dim = 64;
}

NativeModel glm_4_7_flash() {
  NativeModel table = sigmoid_router(64, 4, 1536, 1.8);
  table.attention = AttentionKind::latent;
  table.vocab = 154880;
  table.width = 2048;
  table.layers = 47;
  table.heads = 20;
  table.q_rank = 768;
  table.kv_rank = 512;
  table.nope_dim = 192;
  table.rope_dim = 64;
  table.value_dim = 256;
  table.dense_width = 10240;
  table.rope_theta = 1e6;
  table.norm_eps = 1e-5;
  return table;
}

NativeModel minimax_m2() {
  NativeModel table = sigmoid_router(256, 8, 1536, 1);
  table.vocab = 200064;
  table.width = 3072;
  table.layers = 62;
  table.heads = 48;
  table.kv_heads = 8;
  table.head_dim = 128;
  table.qk_norm = QkNorm::full_width;
  table.dense_layers = 0;
  table.shared_experts = 0;
  table.rope_theta = 5e6;
  return table;
}

void rotate_half_of_128(LayerSpec& layer, int64_t) { layer.attention.rotary_dim = 64; }

NativeModel qwen1_5_moe() {
  NativeModel table;
  table.vocab = 151936;
  table.width = 2048;
  table.layers = 24;
  table.heads = 16;
  table.experts = 60;
  table.top_k = 4;
  table.expert_width = 1408;
  table.shared_experts = 4;
  table.renormalise = false;
  table.rope_theta = 1e6;
  return table;
}

NativeModel qwen2_57b() {
  NativeModel table = qwen1_5_moe();
  table.width = 3584;
  table.layers = 28;
  table.heads = 28;
  table.kv_heads = 4;
  table.experts = 64;
  table.top_k = 8;
  table.expert_width = 2560;
  table.shared_experts = 8;
  return table;
}

void refine_qwen2(LayerSpec& layer, int64_t) {
  layer.attention.qkv_bias = true;
  layer.moe.shared_gate = true;
}

NativeModel ernie_4_5() {
  NativeModel table;
  table.vocab = 103424;
  table.width = 2560;
  table.layers = 28;
  table.heads = 20;
  table.kv_heads = 4;
  table.head_dim = 128;
  table.dense_layers = 1;
  table.dense_width = 12288;
  table.experts = 64;
  table.top_k = 6;
  table.expert_width = 1536;
  table.shared_experts = 2;
  table.tie_embeddings = true;
  table.rope_theta = 5e5;
  table.norm_eps = 1e-5;
  return table;
}

void refine_ernie(LayerSpec& layer, int64_t) {
  layer.attention.rope_pairs = RopePairs::neighbours;
  if (layer.feed_forward != FeedForwardKind::moe) return;
  layer.moe.selection_bias = true;
  layer.moe.least_sum = 1e-12;
}

NativeModel hunyuan_a13b() {
  NativeModel table;
  table.vocab = 128167;
  table.width = 4096;
  table.layers = 32;
  table.heads = 32;
  table.kv_heads = 8;
  table.head_dim = 128;
  table.qk_norm = QkNorm::per_head;
  table.experts = 64;
  table.top_k = 8;
  table.expert_width = 3072;
  table.shared_experts = 1;
  table.tie_embeddings = true;
  table.rope_theta = 1e4 * std::pow(1000.0, 128.0 / 126.0);  // stretched by alpha = 1000
  table.norm_eps = 1e-5;
  return table;
}

void norm_after_rotary(LayerSpec& layer, int64_t) { layer.attention.norm_after_rotary = true; }

NativeModel gpt_oss(int64_t layers, int64_t experts) {
  NativeModel table;
  table.vocab = 201088;
  table.width = 2880;
  table.layers = layers;
  table.heads = 64;
  table.kv_heads = 8;
  table.head_dim = 64;
  table.experts = experts;
  table.top_k = 4;
  table.expert_width = 2880;
  table.activation = Activation::clamped_swiglu;
  table.rope_theta = 150000;
  table.norm_eps = 1e-5;
  return table;
}

void refine_gpt_oss(LayerSpec& layer, int64_t index) {
  layer.attention.qkv_bias = layer.attention.output_bias = layer.attention.sinks = layer.moe.bias = true;
  layer.attention.window = index % 2 == 0 ? 128 : 0;
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
      {"kimi-k2", kimi_k2(), "deepseek_v3", 0.001, true, {32, 1, 1, 1, 1, 4096}},
      {"dots-llm1", dots_llm1(), "dots1", 0},
      {"glm-4.5-air", glm_4_5_air(), "glm4_moe", 0, false, {}, refine_glm},
      {"glm-4.5", glm_4_5(), "glm4_moe", 0, false, {}, refine_glm},
      {"glm-4.7-flash", glm_4_7_flash(), "glm4_moe_lite", 0},
      {"minimax-m2", minimax_m2(), "minimax_m2", 0.001, false, {}, rotate_half_of_128},
      {"qwen1.5-moe-a2.7b", qwen1_5_moe(), "qwen2_moe", 0.001, false, {}, refine_qwen2},
      {"qwen2-57b-a14b", qwen2_57b(), "qwen2_moe", 0.001, false, {}, refine_qwen2},
      {"ernie-4.5-21b-a3b", ernie_4_5(), "ernie4_5_moe", 0.001, false, {}, refine_ernie},
      {"hunyuan-a13b", hunyuan_a13b(), "hunyuan_v1_moe", 0, false, {}, norm_after_rotary},
      {"gpt-oss-20b", gpt_oss(24, 32), "gpt_oss", 0.9, false, {32, 0, 0, 32, 1, 4096, false}, refine_gpt_oss},
      {"gpt-oss-120b", gpt_oss(36, 128), "gpt_oss", 0.9, false, {32, 0, 0, 32, 1, 4096, false}, refine_gpt_oss},
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
