#include "spec/model_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "spec/param_table.h"

namespace mw {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxElements = int64_t{1} << 48;

void check_range(const std::string& where, const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(Exit::config, fmt::format("{}: {} = {}, expected {} to {}", where, field, value, low, high),
         "check the model's configuration");
}

void check_real(const std::string& where, const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(Exit::config, fmt::format("{}: {} = {}, expected {} to {}", where, field, value, low, high),
         "check the model's configuration");
}

void check_product(const std::string& where, const char* what, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t f : factors) {
    if (f != 0 && product > kMaxElements / f)
      fail(Exit::config, fmt::format("{}: {} has more than 2^48 elements", where, what),
           "check the model's configuration");
    product *= f;
  }
}

void validate_layer(const ModelSpec& model, const LayerSpec& layer, const std::string& where) {
  const AttentionSpec& a = layer.attention;
  check_range(where, "attention heads", a.heads, 1, 1 << 16);
  check_range(where, "key/value heads", a.kv_heads, 1, a.heads);
  if (a.heads % a.kv_heads != 0)
    fail(Exit::config,
         fmt::format("{}: {} attention heads are not a multiple of {} key/value heads", where, a.heads, a.kv_heads),
         "choose a number of key/value heads that divides the heads");
  check_range(where, "head_dim", a.head_dim, 2, 1 << 14);
  if (a.head_dim % 2 != 0)
    fail(Exit::config, fmt::format("{}: head_dim = {} is odd, and rotary embedding turns pairs", where, a.head_dim),
         "make it even");
  check_real(where, "clip_qkv", a.clip_qkv, 0, 1e30);
  check_real(where, "rope_theta", a.rope_theta, 1, 1e12);
  check_product(where, "the attention projection", {a.heads, a.head_dim, model.width});
  if (layer.feed_forward == FeedForwardKind::dense) {
    check_range(where, "dense feed-forward width", layer.dense_width, 1, kMaxDimension);
    check_product(where, "the dense feed-forward matrix", {2, layer.dense_width, model.width});
    return;
  }
  const MoeSpec& m = layer.moe;
  check_range(where, "experts", m.experts, 1, 1 << 16);
  check_range(where, "experts per token (top-k)", m.top_k, 1, m.experts);
  check_range(where, "expert width", m.width, 1, kMaxDimension);
  check_range(where, "shared expert width", m.shared_width, 0, kMaxDimension);
  check_real(where, "routed scale", m.scale, 1e-6, 1e6);
  check_product(where, "the expert matrices", {m.experts, 2, m.width, model.width});
  if (m.selection_bias && m.score != ScoreFunction::sigmoid)
    fail(Exit::config, fmt::format("{}: a selection bias needs sigmoid scores", where),
         "set model.score = \"sigmoid\"");
}

Activation parse_activation(const std::string& text) {
  if (text == "swiglu") return Activation::swiglu;
  if (text == "gelu") return Activation::gelu;
  if (text == "relu") return Activation::relu;
  fail(Exit::config,
       fmt::format("model.activation = \"{}\" is not known{}", printable(text),
                   did_you_mean(text, {"swiglu", "gelu", "relu"})),
       "one of swiglu, gelu, relu");
}

struct Preset {
  const char* name;
  int64_t width, expert_width, experts, top_k, layers, heads, seq_len;
};
// X-MoE table 3 and Piper V-D. Two matrices per expert, multi-head attention, no dense layers.
constexpr Preset kPresets[] = {
    {"x-moe-small", 2048, 1408, 64, 6, 28, 16, 2048},      {"x-moe-medium", 5120, 1536, 128, 6, 28, 40, 4096},
    {"x-moe-large", 7168, 2048, 256, 8, 28, 56, 4096},     {"x-moe-super", 7168, 2560, 256, 8, 61, 56, 4096},
    {"piper-m10b-16", 5120, 20480, 16, 2, 32, 40, 4096},   {"piper-m10b-128", 5120, 20480, 128, 2, 32, 40, 4096},
    {"piper-m10b-256", 5120, 20480, 256, 2, 32, 40, 4096},
};

NativeModel expand_preset(const NativeModel& native) {
  for (const Preset& p : kPresets) {
    if (native.preset != p.name) continue;
    NativeModel out;
    out.vocab = 50304;  // GPT-2's vocabulary rounded up, as X-MoE's training scripts use
    out.width = p.width;
    out.layers = p.layers;
    out.heads = p.heads;
    out.experts = p.experts;
    out.top_k = p.top_k;
    out.expert_width = p.expert_width;
    out.activation = "gelu";
    out.renormalise = false;
    out.init_std = 0.014;
    return out;
  }
  fail(Exit::config,
       fmt::format("model.preset = \"{}\" is not known{}", printable(native.preset),
                   did_you_mean(native.preset, preset_names())),
       fmt::format("one of {}", fmt::join(preset_names(), ", ")));
}

}  // namespace

int64_t ModelSpec::moe_layer_count() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerSpec& l) { return l.feed_forward == FeedForwardKind::moe; });
}

void validate(const ModelSpec& model, const std::string& where) {
  check_range(where, "vocabulary", model.vocab, 1, kMaxDimension);
  check_range(where, "model width", model.width, 1, kMaxDimension);
  check_range(where, "number of layers", model.layer_count(), 1, 10000);
  check_real(where, "norm_eps", model.norm_eps, 0, 1);
  check_real(where, "init_std", model.init_std, 0, 100);
  check_real(where, "aux_loss_coef", model.aux_loss_coef, 0, 1e6);
  check_product(where, "the embedding", {model.vocab, model.width});
  int64_t elements = 0;
  for (int64_t i = 0; i < model.layer_count(); ++i)
    validate_layer(model, model.layers[static_cast<size_t>(i)], fmt::format("{}: layer {}", where, i));
  for (const ParamRow& row : param_table(model)) {
    elements += row.numel();
    if (elements > kMaxElements)
      fail(Exit::config, fmt::format("{}: more than 2^48 parameters", where), "check the model's configuration");
  }
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  return names;
}

ModelSpec build_native_model(const NativeModel& given) {
  NativeModel plain;
  plain.preset = given.preset;
  if (!given.preset.empty() && !(given == plain))
    fail(Exit::config,
         fmt::format("model.preset = \"{}\" fixes the architecture, but another [model] key is set too",
                     printable(given.preset)),
         "remove the preset or the other keys");
  const NativeModel n = given.preset.empty() ? given : expand_preset(given);
  check_range("[model]", "layers", n.layers, 1, 10000);
  check_range("[model]", "heads", n.heads, 1, 1 << 16);
  check_range("[model]", "width", n.width, 1, kMaxDimension);
  check_range("[model]", "dense_layers", n.dense_layers, 0, n.layers);
  check_range("[model]", "shared_experts", n.shared_experts, 0, 1024);
  check_range("[model]", "expert_width", n.expert_width, 1, kMaxDimension);
  if (n.head_dim == 0 && n.width % n.heads != 0)
    fail(Exit::config, fmt::format("[model]: width {} is not a multiple of {} heads", n.width, n.heads),
         "set model.head_dim");

  ModelSpec model;
  model.family = "native";
  model.vocab = n.vocab;
  model.width = n.width;
  model.norm_eps = n.norm_eps;
  model.tie_embeddings = n.tie_embeddings;
  model.init_std = n.init_std;

  LayerSpec layer;
  layer.activation = parse_activation(n.activation);
  layer.attention.heads = n.heads;
  layer.attention.kv_heads = n.kv_heads == 0 ? n.heads : n.kv_heads;
  layer.attention.head_dim = n.head_dim == 0 ? n.width / n.heads : n.head_dim;
  layer.attention.rope_theta = n.rope_theta;
  layer.attention.clip_qkv = n.clip_qkv;
  if (n.qk_norm == "per_head") layer.attention.qk_norm = QkNorm::per_head;
  else if (n.qk_norm == "full_width") layer.attention.qk_norm = QkNorm::full_width;
  else if (n.qk_norm != "none")
    fail(Exit::config, fmt::format("model.qk_norm = \"{}\" is not known", printable(n.qk_norm)),
         "one of none, per_head, full_width");
  if (n.score != "softmax" && n.score != "sigmoid")
    fail(Exit::config, fmt::format("model.score = \"{}\" is not known", printable(n.score)), "one of softmax, sigmoid");
  layer.moe.experts = n.experts;
  layer.moe.top_k = n.top_k;
  layer.moe.width = n.expert_width;
  layer.moe.shared_width = n.shared_experts * n.expert_width;
  layer.moe.score = n.score == "sigmoid" ? ScoreFunction::sigmoid : ScoreFunction::softmax;
  layer.moe.selection_bias = n.selection_bias;
  layer.moe.renormalise = n.renormalise;
  layer.moe.scale = n.routed_scale;
  for (int64_t i = 0; i < n.layers; ++i) {
    LayerSpec l = layer;
    l.feed_forward = i < n.dense_layers ? FeedForwardKind::dense : FeedForwardKind::moe;
    if (l.feed_forward == FeedForwardKind::dense) {
      l.moe = MoeSpec{};
      l.dense_width = n.dense_width == 0 ? 4 * n.width : n.dense_width;
    }
    model.layers.push_back(l);
  }
  validate(model, "[model]");
  return model;
}

double forward_flops_per_token(const ModelSpec& model, int64_t seq_len) {
  const double d = static_cast<double>(model.width);
  double flops = 2.0 * d * static_cast<double>(model.vocab);
  for (const LayerSpec& layer : model.layers) {
    const AttentionSpec& a = layer.attention;
    const double q = static_cast<double>(a.heads * a.head_dim), kv = static_cast<double>(a.kv_heads * a.head_dim);
    flops += 2.0 * d * (2 * q + 2 * kv) + 2.0 * static_cast<double>(seq_len + 1) * q;
    const double matrices = layer.activation == Activation::swiglu ? 3 : 2;
    if (layer.feed_forward == FeedForwardKind::dense) {
      flops += 2.0 * matrices * d * static_cast<double>(layer.dense_width);
    } else {
      const MoeSpec& m = layer.moe;
      flops += 2.0 * matrices * d * static_cast<double>(m.top_k * m.width + m.shared_width) +
               2.0 * d * static_cast<double>(m.experts);
    }
  }
  return flops;
}

std::string summary(const ModelSpec& model) {
  const int64_t total = parameter_count(model);
  const int64_t moe_layers = model.moe_layer_count();
  std::string text = fmt::format("{} parameters ({} active per token), {} layers, width {}, vocabulary {}",
                                 format_count(static_cast<double>(total)),
                                 format_count(static_cast<double>(active_parameter_count(model))), model.layer_count(),
                                 model.width, model.vocab);
  for (const LayerSpec& layer : model.layers) {
    if (layer.feed_forward != FeedForwardKind::moe) continue;
    text += fmt::format("; {} MoE layers of {} experts x {}, top-{}", moe_layers, layer.moe.experts, layer.moe.width,
                        layer.moe.top_k);
    if (layer.moe.shared_width > 0) text += fmt::format(", shared width {}", layer.moe.shared_width);
    break;
  }
  return text;
}

}  // namespace mw
