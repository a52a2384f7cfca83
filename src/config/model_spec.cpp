#include "config/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "base/error.h"
#include "base/text.h"
#include "config/hf_families.h"
#include "config/param_table.h"
#include "config/presets.h"

namespace mw {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr int64_t kMaxElements = int64_t{1} << 48;

// What a value is called in the [model] table and in config.json.
struct Field {
  const char *key, *json;
};
constexpr Field kVocab{"vocab", "vocab_size"}, kWidth{"width", "hidden_size"}, kLayers{"layers", "num_hidden_layers"},
    kHeads{"heads", "num_attention_heads"}, kKvHeads{"kv_heads", "num_key_value_heads"},
    kHeadDim{"head_dim", "head_dim"}, kQkNorm{"qk_norm", "qk_norm"}, kClipQkv{"clip_qkv", "clip_qkv"},
    kRopeTheta{"rope_theta", "rope_theta"}, kRotaryDim{"rotary_dim", "rotary_dim"}, kQRank{"q_rank", "q_lora_rank"},
    kKvRank{"kv_rank", "kv_lora_rank"}, kNopeDim{"nope_dim", "qk_nope_head_dim"},
    kRopeDim{"rope_dim", "qk_rope_head_dim"}, kValueDim{"value_dim", "v_head_dim"},
    kDenseWidth{"dense_width", "intermediate_size"}, kTopK{"top_k", "num_experts_per_tok"},
    kSharedExperts{"shared_experts", "n_shared_experts"}, kScale{"routed_scale", "routed_scaling_factor"},
    kGroups{"expert_groups", "n_group"}, kKeptGroups{"kept_groups", "topk_group"};

// The source of a model in the terms of its author.
struct Source {
  std::string where;   // "[model]" or a path, with the layer
  std::string family;  // "native" for the [model] table
  const HfFamily* hf_family() const { return find_hf_family(family); }
  bool is_native() const { return hf_family() == nullptr; }
  std::string name(const Field& field) const { return is_native() ? field.key : field.json; }
  // For hints, where the table is not named beside it.
  std::string full_name(const Field& field) const {
    return is_native() ? fmt::format("model.{}", field.key) : fmt::format("\"{}\"", field.json);
  }
  Field experts() const { return {"experts", is_native() ? "" : hf_family()->experts}; }
  Field expert_width() const { return {"expert_width", is_native() ? "" : hf_family()->expert_width}; }
};

// NaN is out of every range.
template <class Number>
void check_range(const Source& source, const Field& field, Number value, std::type_identity_t<Number> low,
                 std::type_identity_t<Number> high) {
  if (value >= low && value <= high) return;
  fail(Exit::config, fmt::format("{}: {} = {}, expected {} to {}", source.where, source.name(field), value, low, high),
       value > high ? fmt::format("set {} to at most {}", source.full_name(field), high)
                    : fmt::format("set {} to at least {}", source.full_name(field), low));
}

struct Factor {
  Field field;
  int64_t value;
};

void check_product(const Source& source, const char* what, int64_t matrices, std::initializer_list<Factor> factors) {
  int64_t product = matrices;
  const bool fits = std::all_of(factors.begin(), factors.end(), [&](const Factor& f) {
    if (f.value != 0 && product > kMaxElements / f.value) return false;
    product *= f.value;
    return true;
  });
  if (fits) return;
  std::vector<std::string> found, names;
  for (const auto& [field, value] : factors) {
    found.push_back(fmt::format("{} = {}", source.name(field), value));
    names.push_back(source.full_name(field));
  }
  fail(Exit::config,
       fmt::format("{}: {} would have more than 2^48 elements: {}", source.where, what, fmt::join(found, ", ")),
       fmt::format("lower {}", fmt::join(names, " or ")));
}

void check_even(const Source& source, const Field& field, int64_t value) {
  if (value % 2 != 0)
    fail(Exit::config,
         fmt::format("{}: {} = {} is odd, but rotary embedding rotates pairs of elements", source.where,
                     source.name(field), value),
         fmt::format("set {} to an even number, such as {}", source.full_name(field), value + 1));
}

int64_t largest_divisor(int64_t of, int64_t most) {
  while (of % most != 0) --most;
  return most;
}

void validate_latent(const ModelSpec& model, const AttentionSpec& a, const Source& source) {
  const LatentSpec& l = a.latent;
  check_range(source, kQRank, l.q_rank, 0, kMaxDimension);
  check_range(source, kKvRank, l.kv_rank, 1, kMaxDimension);
  check_range(source, kNopeDim, l.nope_dim, 1, 1 << 14);
  check_range(source, kRopeDim, l.rope_dim, 2, 1 << 14);
  check_even(source, kRopeDim, l.rope_dim);
  check_range(source, kValueDim, l.value_dim, 1, 1 << 14);
  std::vector<std::string> unused;
  if (a.kv_heads != a.heads) unused.push_back(source.full_name(kKvHeads));
  if (a.head_dim != l.nope_dim + l.rope_dim) unused.push_back(source.full_name(kHeadDim));
  if (a.qk_norm != QkNorm::none) unused.push_back(source.full_name(kQkNorm));
  if (a.clip_qkv != 0) unused.push_back(source.full_name(kClipQkv));
  if (!unused.empty())
    fail(Exit::config,
         fmt::format("{}: latent attention does not use {}; its heads follow from {}, {}, {} and {}", source.where,
                     fmt::join(unused, ", "), source.name(kHeads), source.name(kNopeDim), source.name(kRopeDim),
                     source.name(kValueDim)),
         fmt::format("remove {}", fmt::join(unused, ", ")));
  const char* const what = "an attention projection";
  constexpr Field kBothDims{"nope_dim + value_dim", "qk_nope_head_dim + v_head_dim"};
  check_product(source, what, 1, {{kHeads, a.heads}, {kBothDims, l.nope_dim + l.value_dim}, {kKvRank, l.kv_rank}});
  check_product(source, what, 1, {{kHeads, a.heads}, {kValueDim, l.value_dim}, {kWidth, model.width}});
  check_product(source, what, 1, {{kHeads, a.heads}, {kHeadDim, a.head_dim}, {kQRank, l.q_rank}});
}

// Only a config.json can ask for it.
void validate_yarn(const YarnSpec& yarn, const Source& source) {
  const auto field = [](const char* name) { return Field{name, name}; };
  check_range(source, field("rope_scaling.factor"), yarn.factor, 1, 1e6);
  if (yarn.factor == 1) return;
  check_range(source, field("rope_scaling.mscale"), yarn.mscale, 0, 100);
  check_range(source, field("rope_scaling.mscale_all_dim"), yarn.mscale_all_dim, 0, 100);
  check_range(source, field("rope_scaling.beta_slow"), yarn.beta_slow, 1e-6, 1e6);
  check_range(source, field("rope_scaling.beta_fast"), yarn.beta_fast, yarn.beta_slow, 1e6);
  check_range(source, field("rope_scaling.original_max_position_embeddings"), yarn.positions, 1, int64_t{1} << 40);
}

void validate_groups(const MoeSpec& m, const Source& source) {
  check_range(source, kGroups, m.groups, 1, m.experts);
  if (m.experts % m.groups != 0)
    fail(Exit::config,
         fmt::format("{}: {} = {} is not a multiple of {} = {}", source.where, source.name(source.experts()), m.experts,
                     source.name(kGroups), m.groups),
         fmt::format("set {} to {}", source.full_name(kGroups), largest_divisor(m.experts, m.groups)));
  check_range(source, kKeptGroups, m.kept_groups, 1, m.groups);
  const int64_t each = m.experts / m.groups;
  if (m.group_best < 1 || m.group_best > each)
    fail(Exit::config,
         fmt::format("{}: the {} best experts rank a group, but {} = {} leaves {} in each", source.where, m.group_best,
                     source.name(kGroups), m.groups, each),
         fmt::format("set {} to {}", source.full_name(kGroups),
                     largest_divisor(
                         m.experts, std::clamp<int64_t>(m.experts / std::max<int64_t>(m.group_best, 1), 1, m.groups))));
  if (m.kept_groups * each < m.top_k)
    fail(Exit::config,
         fmt::format("{}: {} = {} of {} experts each are too few for {} = {}", source.where, source.name(kKeptGroups),
                     m.kept_groups, each, source.name(kTopK), m.top_k),
         fmt::format("set {} to at least {}, or {} to at most {}", source.full_name(kKeptGroups),
                     (m.top_k + each - 1) / each, source.full_name(kTopK), m.kept_groups * each));
}

void validate_layer(const ModelSpec& model, const LayerSpec& layer, const Source& source) {
  const AttentionSpec& a = layer.attention;
  check_range(source, kHeads, a.heads, 1, 1 << 16);
  check_range(source, kKvHeads, a.kv_heads, 1, a.heads);
  if (a.heads % a.kv_heads != 0)
    fail(Exit::config,
         fmt::format("{}: {} = {} is not a multiple of {} = {}", source.where, source.name(kHeads), a.heads,
                     source.name(kKvHeads), a.kv_heads),
         fmt::format("set {} to {}", source.full_name(kKvHeads), largest_divisor(a.heads, a.kv_heads)));
  check_range(source, kHeadDim, a.head_dim, 2, 1 << 14);
  if (a.is_latent()) validate_latent(model, a, source);
  else if (a.rotary_dim == 0) check_even(source, kHeadDim, a.head_dim);
  check_range(source, {"window", "sliding_window"}, a.window, 0, int64_t{1} << 40);
  if (a.rotary_dim != 0) {
    check_range(source, kRotaryDim, a.rotary_dim, 2, a.head_dim);
    check_even(source, kRotaryDim, a.rotary_dim);
  }
  validate_yarn(a.yarn, source);
  if (a.yarn.factor > 1) check_range(source, kRopeTheta, a.rope_theta, 1.001, 1e12);
  check_range(source, kClipQkv, a.clip_qkv, 0, 1e30);
  check_range(source, kRopeTheta, a.rope_theta, 1, 1e12);
  check_product(source, "an attention projection", 1,
                {{kHeads, a.heads}, {kHeadDim, a.head_dim}, {kWidth, model.width}});
  if (layer.feed_forward == FeedForwardKind::dense) {
    check_range(source, kDenseWidth, layer.dense_width, 1, kMaxDimension);
    check_product(source, "the dense feed-forward", 2, {{kDenseWidth, layer.dense_width}, {kWidth, model.width}});
    return;
  }
  const MoeSpec& m = layer.moe;
  check_range(source, source.experts(), m.experts, 1, 1 << 16);
  check_range(source, kTopK, m.top_k, 1, m.experts);
  check_range(source, source.expert_width(), m.width, 1, kMaxDimension);
  if (m.shared_width < 0 || m.shared_width > kMaxDimension)
    fail(Exit::config,
         fmt::format("{}: {} x {} = {}, expected 0 to {}", source.where, source.name(kSharedExperts),
                     source.name(source.expert_width()), m.shared_width, kMaxDimension),
         fmt::format("set {} to at most {}", source.full_name(kSharedExperts), kMaxDimension / m.width));
  check_range(source, kScale, m.scale, 1e-6, 1e6);
  check_product(source, "the experts of a layer", 2,
                {{source.experts(), m.experts}, {source.expert_width(), m.width}, {kWidth, model.width}});
  validate_groups(m, source);
  check_range(source, {"least_sum", "moe_norm_min"}, m.least_sum, 0, 1);
  check_range(source, {"swiglu_alpha", "swiglu_alpha"}, layer.swiglu_alpha, 0, 1e6);
  check_range(source, {"swiglu_limit", "swiglu_limit"}, layer.swiglu_limit, 1e-6, 1e30);
  if (source.is_native() && m.selection_bias && m.score != ScoreFunction::sigmoid)
    fail(Exit::config, fmt::format("{}: selection_bias = true needs score = \"sigmoid\"", source.where),
         "set model.score = \"sigmoid\", or model.selection_bias = false");
}

AttentionSpec native_attention(const NativeModel& n) {
  AttentionSpec a;
  a.heads = n.heads;
  a.kv_heads = n.kv_heads == 0 ? n.heads : n.kv_heads;
  a.rope_theta = n.rope_theta;
  a.qk_norm = n.qk_norm;
  a.clip_qkv = n.clip_qkv;
  if (n.attention == AttentionKind::latent) {
    if (n.head_dim != 0)
      fail(Exit::config,
           fmt::format("[model]: head_dim = {} is set, but with latent attention it is nope_dim + rope_dim = {}",
                       n.head_dim, n.nope_dim + n.rope_dim),
           "remove model.head_dim");
    a.kind = AttentionKind::latent;
    a.latent = {n.q_rank, n.kv_rank, n.nope_dim, n.rope_dim, n.value_dim};
    a.head_dim = n.nope_dim + n.rope_dim;
    a.rope_pairs = RopePairs::neighbours;
    return a;
  }
  if (n.head_dim == 0 && n.width % n.heads != 0)
    fail(Exit::config,
         fmt::format("[model]: width = {} is not a multiple of heads = {}, so head_dim cannot be derived", n.width,
                     n.heads),
         fmt::format("set model.head_dim, for example to {}", std::max<int64_t>(2, n.width / n.heads / 2 * 2)));
  a.head_dim = n.head_dim == 0 ? n.width / n.heads : n.head_dim;
  return a;
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

double AttentionSpec::mean_keys(int64_t seq_len) const {
  const auto length = static_cast<double>(seq_len), keys = has_window(seq_len) ? static_cast<double>(window) : length;
  return keys - keys * (keys - 1) / (2 * length);
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
  const Source source{where, model.family};
  check_range(source, kVocab, model.vocab, 1, kMaxDimension);
  check_range(source, kWidth, model.width, 1, kMaxDimension);
  check_range(source, kLayers, model.layer_count(), 1, 10000);
  check_range(source, {"norm_eps", "rms_norm_eps"}, model.norm_eps, 0, 1);
  check_range(source, {"init_std", "initializer_range"}, model.init_std, 0, 100);
  const bool of_sequences = !source.is_native() && source.hf_family()->aux_loss == HfAuxLoss::of_sequences;
  check_range(source, {"aux_loss_coef", of_sequences ? "aux_loss_alpha" : "router_aux_loss_coef"}, model.aux_loss_coef,
              0, 1e6);
  check_range(source, {"mtp_layers", "num_nextn_predict_layers"}, model.mtp_layers, 0, 100);
  check_product(source, "the embedding", 1, {{kVocab, model.vocab}, {kWidth, model.width}});
  int64_t elements = 0;
  for (int64_t i = 0; i < model.layer_count(); ++i)
    validate_layer(model, model.layers[static_cast<size_t>(i)], {fmt::format("{}: layer {}", where, i), model.family});
  for (const ParamRow& row : param_table(model)) {
    elements += row.numel();
    if (elements > kMaxElements)
      fail(Exit::config, fmt::format("{}: the model would have more than 2^48 parameters", where),
           fmt::format("lower {}, {} or {}", source.full_name(kLayers), source.full_name(kWidth),
                       source.full_name(source.experts())));
  }
}

ModelSpec build_native_model(const NativeModel& given) {
  NativeModel plain;
  plain.preset = given.preset;
  if (!given.preset.empty() && !(given == plain))
    fail(Exit::config,
         fmt::format("model.preset = \"{}\" sets the whole architecture, but other keys of [model] are set too",
                     printable(given.preset)),
         "remove model.preset, or every other key of [model]");
  Preset preset = given.preset.empty() ? Preset{"", given} : find_preset(given.preset);
  const NativeModel& n = preset.table;
  if (given.preset.empty() && n.selection_bias) preset.aux_loss_coef = 0;
  const Source source{"[model]", "native"};
  check_range(source, kLayers, n.layers, 1, 10000);
  check_range(source, kHeads, n.heads, 1, 1 << 16);
  check_range(source, kWidth, n.width, 1, kMaxDimension);
  check_range(source, {"dense_layers", "first_k_dense_replace"}, n.dense_layers, 0, n.layers);
  check_range(source, kSharedExperts, n.shared_experts, 0, 1024);
  check_range(source, source.expert_width(), n.expert_width, 1, kMaxDimension);

  ModelSpec model;
  model.family = preset.family;
  model.vocab = n.vocab;
  model.width = n.width;
  model.norm_eps = n.norm_eps;
  model.tie_embeddings = n.tie_embeddings;
  model.init_std = n.init_std;
  model.aux_loss_coef = preset.aux_loss_coef;
  model.sequence_aux = preset.sequence_aux;

  LayerSpec layer;
  layer.activation = n.activation;
  layer.attention = native_attention(n);
  layer.attention.yarn = preset.yarn;
  layer.moe.experts = n.experts;
  layer.moe.top_k = n.top_k;
  layer.moe.width = n.expert_width;
  layer.moe.shared_width = n.shared_experts * n.expert_width;
  layer.moe.score = n.score;
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
    if (preset.refine != nullptr) preset.refine(l, i);
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
             2.0 * a.mean_keys(seq_len) * static_cast<double>(a.heads * (a.head_dim + a.value_dim()));
    const auto matrices = static_cast<double>(halves_of(layer.activation) + 1);
    if (layer.feed_forward == FeedForwardKind::dense) {
      flops += 2.0 * matrices * d * static_cast<double>(layer.dense_width);
    } else {
      const MoeSpec& m = layer.moe;
      flops += 2.0 * matrices * d * static_cast<double>(m.top_k * m.width + m.shared_width) +
               2.0 * d * static_cast<double>(m.experts + (m.shared_gate ? 1 : 0));
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
