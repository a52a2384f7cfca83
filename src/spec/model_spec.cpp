#include "spec/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

void check_even(const std::string& where, const char* field, int64_t value) {
  if (value % 2 != 0)
    fail(Exit::config, fmt::format("{}: {} = {} is odd, and rotary embedding turns pairs", where, field, value),
         "make it even");
}

void validate_latent(const ModelSpec& model, const AttentionSpec& a, const std::string& where) {
  const LatentSpec& l = a.latent;
  check_range(where, "query rank", l.q_rank, 0, kMaxDimension);
  check_range(where, "key/value rank", l.kv_rank, 1, kMaxDimension);
  check_range(where, "unrotated head width", l.nope_dim, 1, 1 << 14);
  check_range(where, "rotated head width", l.rope_dim, 2, 1 << 14);
  check_even(where, "rotated head width", l.rope_dim);
  check_range(where, "value width", l.value_dim, 1, 1 << 14);
  if (a.kv_heads != a.heads || a.head_dim != l.nope_dim + l.rope_dim || a.qk_norm != QkNorm::none || a.clip_qkv != 0)
    fail(Exit::config, fmt::format("{}: latent attention with key/value heads, head_dim, qk_norm or clip_qkv", where),
         "its heads follow from nope_dim, rope_dim and value_dim");
  check_product(where, "the attention projection", {a.heads, l.nope_dim + l.value_dim, l.kv_rank});
  check_product(where, "the attention projection", {a.heads, l.value_dim, model.width});
  check_product(where, "the attention projection", {a.heads, a.head_dim, l.q_rank});
}

void validate_yarn(const YarnSpec& yarn, const std::string& where) {
  check_real(where, "YaRN factor", yarn.factor, 1, 1e6);
  if (yarn.factor == 1) return;
  check_real(where, "YaRN mscale", yarn.mscale, 0, 100);
  check_real(where, "YaRN mscale_all_dim", yarn.mscale_all_dim, 0, 100);
  check_real(where, "YaRN beta_slow", yarn.beta_slow, 1e-6, 1e6);
  check_real(where, "YaRN beta_fast", yarn.beta_fast, yarn.beta_slow, 1e6);
  check_range(where, "YaRN original positions", yarn.positions, 1, int64_t{1} << 40);
}

void validate_groups(const MoeSpec& m, const std::string& where) {
  check_range(where, "expert groups", m.groups, 1, m.experts);
  if (m.experts % m.groups != 0)
    fail(Exit::config, fmt::format("{}: {} experts are not a multiple of {} groups", where, m.experts, m.groups),
         "groups of experts are equal");
  check_range(where, "kept expert groups", m.kept_groups, 1, m.groups);
  const int64_t each = m.experts / m.groups;
  check_range(where, "experts that score a group", m.group_best, 1, each);
  if (m.kept_groups * each < m.top_k)
    fail(Exit::config,
         fmt::format("{}: {} kept groups of {} experts are too few for top-{}", where, m.kept_groups, each, m.top_k),
         "keep more groups, or lower top-k");
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
  if (a.is_latent()) validate_latent(model, a, where);
  else check_even(where, "head_dim", a.head_dim);
  validate_yarn(a.yarn, where);
  if (a.yarn.factor > 1) check_real(where, "rope_theta with YaRN", a.rope_theta, 1.001, 1e12);
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
  validate_groups(m, where);
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

QkNorm parse_qk_norm(const std::string& text) {
  if (text == "none") return QkNorm::none;
  if (text == "per_head") return QkNorm::per_head;
  if (text == "full_width") return QkNorm::full_width;
  fail(Exit::config, fmt::format("model.qk_norm = \"{}\" is not known", printable(text)),
       "one of none, per_head, full_width");
}

AttentionSpec native_attention(const NativeModel& n) {
  AttentionSpec a;
  a.heads = n.heads;
  a.kv_heads = n.kv_heads == 0 ? n.heads : n.kv_heads;
  a.rope_theta = n.rope_theta;
  a.qk_norm = parse_qk_norm(n.qk_norm);
  a.clip_qkv = n.clip_qkv;
  if (n.attention == "latent") {
    if (n.head_dim != 0)
      fail(Exit::config, "[model]: head_dim is set, but heads of latent attention are nope_dim + rope_dim wide",
           "remove model.head_dim");
    a.kind = AttentionKind::latent;
    a.latent = {n.q_rank, n.kv_rank, n.nope_dim, n.rope_dim, n.value_dim};
    a.head_dim = n.nope_dim + n.rope_dim;
    a.rope_pairs = RopePairs::neighbours;
    return a;
  }
  if (n.attention != "grouped")
    fail(Exit::config, fmt::format("model.attention = \"{}\" is not known", printable(n.attention)),
         "one of grouped, latent");
  if (n.head_dim == 0 && n.width % n.heads != 0)
    fail(Exit::config, fmt::format("[model]: width {} is not a multiple of {} heads", n.width, n.heads),
         "set model.head_dim");
  a.head_dim = n.head_dim == 0 ? n.width / n.heads : n.head_dim;
  return a;
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

static double yarn_magnitude(double factor, double scale) { return 0.1 * scale * std::log(factor) + 1.0; }

double YarnSpec::table_scale() const {
  const bool given = mscale > 0 && mscale_all_dim > 0;
  return given ? yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim) : yarn_magnitude(factor, 1.0);
}

double YarnSpec::score_scale() const {
  const double magnitude = yarn_magnitude(factor, mscale_all_dim);
  return magnitude * magnitude;
}

int64_t expert_capacity(const MoeSpec& moe, int64_t tokens, double factor) {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(tokens * moe.top_k) / static_cast<double>(moe.experts) * factor));
}

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
  check_range(where, "multi-token prediction layers", model.mtp_layers, 0, 100);
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

  ModelSpec model;
  model.family = "native";
  model.vocab = n.vocab;
  model.width = n.width;
  model.norm_eps = n.norm_eps;
  model.tie_embeddings = n.tie_embeddings;
  model.init_std = n.init_std;
  model.aux_loss_coef = n.selection_bias ? 0 : kNativeAuxLossCoef;

  LayerSpec layer;
  layer.activation = parse_activation(n.activation);
  layer.attention = native_attention(n);
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
  layer.moe.groups = n.expert_groups;
  layer.moe.kept_groups = n.kept_groups;
  layer.moe.group_best = n.group_best;
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

// Elements of the matrices that one token's attention multiplies with.
static double attention_weights(const AttentionSpec& a, double width) {
  const auto heads = static_cast<double>(a.heads), q = heads * static_cast<double>(a.head_dim),
             o = heads * static_cast<double>(a.value_dim());
  if (!a.is_latent()) return width * 2 * (q + static_cast<double>(a.kv_heads * a.head_dim));
  const auto q_rank = static_cast<double>(a.latent.q_rank), kv_rank = static_cast<double>(a.latent.kv_rank);
  const double queries = q_rank > 0 ? q_rank * (width + q) : width * q;
  return queries + width * (kv_rank + static_cast<double>(a.latent.rope_dim)) +
         kv_rank * (heads * static_cast<double>(a.latent.nope_dim) + o) + width * o;
}

double forward_flops_per_token(const ModelSpec& model, int64_t seq_len) {
  const double d = static_cast<double>(model.width);
  double flops = 2.0 * d * static_cast<double>(model.vocab);
  for (const LayerSpec& layer : model.layers) {
    const AttentionSpec& a = layer.attention;
    flops += 2.0 * attention_weights(a, d) +
             static_cast<double>(seq_len + 1) * static_cast<double>(a.heads * (a.head_dim + a.value_dim()));
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
