#include "config/hf_feed_forward.h"

#include <algorithm>

#include "config/hf_attention.h"

namespace mw {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool is_sparse(const LayerSpec& layer) { return layer.feed_forward == FeedForwardKind::moe; }

// (i + 1) % decoder_sparse_step == 0 and i not in mlp_only_layers.
std::vector<bool> moe_layers_by_step(const HfFields& f, int64_t layers) {
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

// (i + 1) % moe_layer_interval == 0, from moe_layer_start_index to moe_layer_end_index, where null or -1 is the last.
std::vector<bool> moe_layers_by_range(const HfFields& f, int64_t layers) {
  const int64_t start = f.integer("moe_layer_start_index"), step = f.integer("moe_layer_interval");
  int64_t end = f.is_null("moe_layer_end_index") ? -1 : f.integer("moe_layer_end_index");
  if (end == -1) end = layers - 1;
  if (step < 1) f.wrong("moe_layer_interval", "at least 1", f.raw("moe_layer_interval"));
  std::vector<bool> sparse;
  for (int64_t i = 0; i < layers; ++i) sparse.push_back((i + 1) % step == 0 && i >= start && i <= end);
  return sparse;
}

// The keys that give the same layers; `sparse` ascends.
void write_range(const std::vector<int64_t>& sparse, ordered_json& out) {
  out["moe_layer_start_index"] = sparse.front();
  out["moe_layer_end_index"] = sparse.back();
  out["moe_layer_interval"] = sparse.size() > 1 ? sparse[1] - sparse[0] : 1;
}

// first_k_dense_replace, which transformers does not read, may stand beside the list, or in place of it if it is 1.
std::vector<bool> moe_layers_by_types(const HfFields& f, int64_t layers) {
  std::vector<bool> sparse(static_cast<size_t>(layers), true);
  sparse.front() = false;
  const char* const key = "mlp_layer_types";
  if (f.has(key)) {
    const json& types = f.raw(key);
    const auto is_type = [](const json& type) { return type == "dense" || type == "sparse"; };
    if (!types.is_array() || std::ssize(types) != layers || !std::all_of(types.begin(), types.end(), is_type))
      f.wrong(key, fmt::format("a list of num_hidden_layers = {} words, \"dense\" or \"sparse\"", layers), types);
    for (size_t i = 0; i < sparse.size(); ++i) sparse[i] = types[i] == "sparse";
  }
  const int64_t dense = std::find(sparse.begin(), sparse.end(), true) - sparse.begin();
  if (f.integer_or("first_k_dense_replace", dense) != dense)
    f.wrong("first_k_dense_replace",
            fmt::format("{}{}", dense, f.has(key) ? ", as in mlp_layer_types" : " where mlp_layer_types is absent"),
            f.raw("first_k_dense_replace"));
  return sparse;
}

// For transformers, and for programs that read the number of dense layers at the front.
void write_types(const ModelSpec& model, ordered_json& out) {
  std::vector<const char*> types;
  for (const LayerSpec& layer : model.layers) types.push_back(is_sparse(layer) ? "sparse" : "dense");
  out["mlp_layer_types"] = types;
  const auto first = std::find_if(model.layers.begin(), model.layers.end(), is_sparse);
  if (std::all_of(first, model.layers.end(), is_sparse)) out["first_k_dense_replace"] = first - model.layers.begin();
}

std::vector<bool> find_moe_layers(const HfFields& f, const HfFamily& family, int64_t layers) {
  std::vector<bool> all(static_cast<size_t>(layers), true);
  if (family.moe_layers == HfMoeLayers::by_step) return moe_layers_by_step(f, layers);
  if (family.moe_layers == HfMoeLayers::by_types) return moe_layers_by_types(f, layers);
  if (family.moe_layers == HfMoeLayers::by_range) return moe_layers_by_range(f, layers);
  if (family.moe_layers == HfMoeLayers::all) return all;
  const int64_t first = f.integer("first_k_dense_replace");
  if (first < 0 || first > layers)
    f.wrong("first_k_dense_replace", fmt::format("0 to num_hidden_layers = {}", layers),
            f.raw("first_k_dense_replace"));
  std::fill_n(all.begin(), first, false);
  return all;
}

// Without a selection bias groups are ranked by their best expert, with one by the sum of their two best.
void read_groups(const HfFields& f, const HfFamily& family, MoeSpec& m) {
  const bool v3 = family.selection_bias;
  const std::string method = f.has("topk_method") || !v3 ? f.text("topk_method") : "noaux_tc";
  if (!v3 && method == "greedy") return;
  if (method != (v3 ? "noaux_tc" : "group_limited_greedy"))
    f.unsupported(fmt::format("topk_method \"{}\"", printable(method)));
  m.groups = f.integer("n_group");
  m.kept_groups = f.integer("topk_group");
  if (m.groups > 1) m.group_best = family.group_best;
}

// Of one layer, from a number or a list.
int64_t read_top_k(const HfFields& f, const char* key, int64_t layer) {
  if (!f.has(key) || !f.raw(key).is_array()) return f.integer(key);
  const json& list = f.raw(key);
  if (static_cast<int64_t>(list.size()) <= layer || !list.at(static_cast<size_t>(layer)).is_number_integer())
    f.wrong(key, "a number, or one for each layer", list);
  return list.at(static_cast<size_t>(layer)).get<int64_t>();
}

// transformers reads num_experts_per_tok beside the key of the family.
int64_t read_top_k(const HfFields& f, const HfFamily& family, int64_t layer) {
  const char* const other = "num_experts_per_tok";
  if (!f.has(other)) return read_top_k(f, family.top_k, layer);
  const int64_t top_k = read_top_k(f, other, layer);
  if (f.has(family.top_k) && read_top_k(f, family.top_k, layer) != top_k)
    f.wrong(family.top_k, fmt::format("the value of its other name, {}", top_k), f.raw(family.top_k));
  return top_k;
}

int64_t read_shared_width(const HfFields& f, const HfFamily& family, int64_t expert_width) {
  if (has_name(family.shared_width)) return f.integer(family.shared_width);
  int64_t experts = family.shared_experts;
  // null means none; absent would mean a default of the family's class.
  if (has_name(family.shared_count)) experts = f.is_null(family.shared_count) ? 0 : f.integer(family.shared_count);
  if (experts < 0 || experts > 1024) f.wrong(family.shared_count, "0 to 1024", f.raw(family.shared_count));
  if (expert_width < 1 || expert_width > (1 << 24))
    f.wrong(family.expert_width, "1 to 2^24", f.raw(family.expert_width));
  return experts * expert_width;
}

MoeSpec read_moe(const HfFields& f, const HfFamily& family) {
  MoeSpec m;
  m.experts = f.integer_of({family.experts, "num_experts", "num_local_experts", "n_routed_experts"});
  m.width = f.integer(family.expert_width);
  m.score = family.score;
  m.selection_bias = family.selection_bias;
  m.renormalise = family.renormalises || f.flag("norm_topk_prob");
  m.shared_width = read_shared_width(f, family, m.width);
  m.shared_gate = family.shared_gate && m.shared_width > 0;
  if (has_name(family.least_sum)) m.least_sum = f.real(family.least_sum);
  m.bias = family.moe_bias;
  if (has_name(family.scale)) m.scale = f.real(family.scale);
  if (!family.scales_groups) return m;
  if (f.has("scoring_func") && f.text("scoring_func") != word_of(m.score))
    f.unsupported(fmt::format("scoring_func \"{}\" in a {} model", printable(f.text("scoring_func")), family.name));
  m.scale = f.real("routed_scaling_factor");
  // DeepSeek-V2's own code then leaves out routed_scaling_factor, and Hugging Face's does not renormalise.
  if (m.renormalise && m.score == ScoreFunction::softmax)
    f.unsupported(fmt::format("norm_topk_prob = true in a {} model", family.name));
  read_groups(f, family, m);
  return m;
}

void read_aux_loss(const HfFields& f, const HfFamily& family, ModelSpec& model) {
  if (family.aux_loss == HfAuxLoss::none) return;
  if (family.aux_loss == HfAuxLoss::of_model) {
    model.aux_loss_coef = f.real("router_aux_loss_coef");
    return;
  }
  // Hugging Face's models have no auxiliary loss, and its configs may leave it out.
  model.aux_loss_coef = f.real_or("aux_loss_alpha", 0);
  model.sequence_aux = model.aux_loss_coef > 0 ? f.flag("seq_aux") : f.flag_or("seq_aux", false);
  if (model.aux_loss_coef > 0 && !model.sequence_aux) f.unsupported("seq_aux = false with a positive aux_loss_alpha");
}

void write_scales_groups(const MoeSpec& m, const HfFamily& family, ordered_json& out) {
  const bool v3 = family.selection_bias;
  out["moe_layer_freq"] = 1;
  out["scoring_func"] = word_of(m.score);
  out["topk_method"] = v3 ? "noaux_tc" : m.groups > 1 ? "group_limited_greedy" : "greedy";
  out["n_group"] = m.groups;
  out["topk_group"] = m.kept_groups;
  out["routed_scaling_factor"] = m.scale;
}

// value: as in HfFamily::fixed.
void check_fixed(const HfFields& f, const char* key, const char* value) {
  if (!f.has(key)) return;
  const json& found = f.raw(key);
  const json& expected = f.has(value) ? f.raw(value) : json::parse(value, nullptr, false);
  const auto is_expected = [&](const json& element) { return element == expected; };
  if (found.is_array() ? !std::all_of(found.begin(), found.end(), is_expected) : !is_expected(found))
    f.unsupported(fmt::format("{} = {}", key, printable(found.dump())));
}

}  // namespace

void read_hf_layers(const HfFields& config, const HfFamily& family, const AttentionSpec& attention, ModelSpec& model) {
  if (config.flag_or("mlp_bias", false)) config.unsupported("mlp_bias");
  if (config.integer_or("moe_layer_freq", 1) != 1) config.unsupported("a moe_layer_freq other than 1");
  for (const auto& [key, value] : family.fixed) check_fixed(config, key, value);
  read_aux_loss(config, family, model);
  model.mtp_layers = config.integer_or("num_nextn_predict_layers", family.mtp_layers);

  const int64_t layers = config.integer("num_hidden_layers");
  if (layers < 1 || layers > 10000) config.wrong("num_hidden_layers", "1 to 10000", config.raw("num_hidden_layers"));
  const std::vector<bool> moe = find_moe_layers(config, family, layers);
  const std::vector<int64_t> windows = read_hf_windows(config, family, layers);
  LayerSpec sparse;
  sparse.attention = attention;
  sparse.feed_forward = FeedForwardKind::moe;
  sparse.moe = read_moe(config, family);
  sparse.activation = family.activation;
  if (sparse.activation == Activation::clamped_swiglu) {
    sparse.swiglu_alpha = config.real_or("swiglu_alpha", kSwigluAlpha);
    sparse.swiglu_limit = config.real_or("swiglu_limit", kSwigluLimit);
  }
  LayerSpec dense;
  dense.attention = attention;
  for (int64_t i = 0; i < layers; ++i) {
    model.layers.push_back(moe[static_cast<size_t>(i)] ? sparse : dense);
    LayerSpec& layer = model.layers.back();
    layer.attention.window = windows[static_cast<size_t>(i)];
    if (is_sparse(layer)) layer.moe.top_k = read_top_k(config, family, i);
    else layer.dense_width = config.integer("intermediate_size");
  }
}

void write_hf_layers(const ModelSpec& model, const HfFamily& family, ordered_json& config) {
  const LayerSpec& first = *std::find_if(model.layers.begin(), model.layers.end(), is_sparse);
  const MoeSpec& m = first.moe;
  int64_t dense_width = m.width * m.top_k;
  std::vector<int64_t> dense_layers, sparse_layers, top_k;
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    top_k.push_back(is_sparse(layer) ? layer.moe.top_k : m.top_k);
    if (is_sparse(layer)) {
      sparse_layers.push_back(i);
      continue;
    }
    dense_width = layer.dense_width;
    dense_layers.push_back(i);
  }
  if (family.selection_bias) config["num_nextn_predict_layers"] = 0;
  config[family.experts] = m.experts;
  const bool same_top_k = std::all_of(top_k.begin(), top_k.end(), [&](int64_t k) { return k == m.top_k; });
  config[family.top_k] = same_top_k ? ordered_json(m.top_k) : ordered_json(top_k);
  config["intermediate_size"] = dense_width;
  config[family.expert_width] = m.width;  // the same key, in families without dense layers
  if (has_name(family.shared_count)) config[family.shared_count] = m.shared_width / m.width;
  if (has_name(family.shared_width)) config[family.shared_width] = m.shared_width;
  if (has_name(family.least_sum)) config[family.least_sum] = m.least_sum;
  if (first.activation == Activation::clamped_swiglu) {
    config["swiglu_alpha"] = first.swiglu_alpha;
    config["swiglu_limit"] = first.swiglu_limit;
  }
  if (!family.renormalises) config["norm_topk_prob"] = m.renormalise;
  if (family.moe_layers == HfMoeLayers::by_step) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = dense_layers;
  }
  if (family.moe_layers == HfMoeLayers::after_first) config["first_k_dense_replace"] = std::ssize(dense_layers);
  if (family.moe_layers == HfMoeLayers::by_types) write_types(model, config);
  if (family.moe_layers == HfMoeLayers::by_range) write_range(sparse_layers, config);
  if (has_name(family.scale)) config[family.scale] = m.scale;
  if (family.scales_groups) write_scales_groups(m, family, config);
  if (family.aux_loss == HfAuxLoss::of_model) config["router_aux_loss_coef"] = model.aux_loss_coef;
  if (family.aux_loss == HfAuxLoss::of_sequences) {
    config["aux_loss_alpha"] = model.aux_loss_coef;
    config["seq_aux"] = model.sequence_aux;
  }
}

}  // namespace mw
