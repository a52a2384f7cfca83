#include "config/hf_feed_forward.h"

#include <algorithm>

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

std::vector<bool> find_moe_layers(const HfFields& f, const HfFamily& family, int64_t layers) {
  std::vector<bool> all(static_cast<size_t>(layers), true);
  if (family.moe_layers == HfMoeLayers::by_step) return moe_layers_by_step(f, layers);
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

MoeSpec read_moe(const HfFields& f, const HfFamily& family) {
  MoeSpec m;
  m.experts = f.integer_of({family.experts, "num_experts", "num_local_experts", "n_routed_experts"});
  m.top_k = f.integer("num_experts_per_tok");
  m.width = f.integer(family.expert_width);
  m.score = family.score;
  m.selection_bias = family.selection_bias;
  m.renormalise = family.renormalises || f.flag("norm_topk_prob");
  if (!family.scales_groups) return m;
  const int64_t shared = f.integer_or("n_shared_experts", 0);
  if (shared < 0 || shared > 1024) f.wrong("n_shared_experts", "0 to 1024", f.raw("n_shared_experts"));
  if (m.width < 1 || m.width > (1 << 24)) f.wrong(family.expert_width, "1 to 2^24", f.raw(family.expert_width));
  m.shared_width = shared * m.width;
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
  out["n_shared_experts"] = m.shared_width / m.width;
  out["moe_layer_freq"] = 1;
  out["scoring_func"] = word_of(m.score);
  out["topk_method"] = v3 ? "noaux_tc" : m.groups > 1 ? "group_limited_greedy" : "greedy";
  out["n_group"] = m.groups;
  out["topk_group"] = m.kept_groups;
  out["routed_scaling_factor"] = m.scale;
  if (v3) out["num_nextn_predict_layers"] = 0;
}

}  // namespace

void read_hf_layers(const HfFields& config, const HfFamily& family, const AttentionSpec& attention, ModelSpec& model) {
  if (config.flag_or("mlp_bias", false)) config.unsupported("mlp_bias");
  if (config.integer_or("moe_layer_freq", 1) != 1) config.unsupported("a moe_layer_freq other than 1");
  read_aux_loss(config, family, model);
  if (family.scales_groups) model.mtp_layers = config.integer_or("num_nextn_predict_layers", 0);

  const int64_t layers = config.integer("num_hidden_layers");
  if (layers < 1 || layers > 10000) config.wrong("num_hidden_layers", "1 to 10000", config.raw("num_hidden_layers"));
  const std::vector<bool> moe = find_moe_layers(config, family, layers);
  LayerSpec sparse;
  sparse.attention = attention;
  sparse.feed_forward = FeedForwardKind::moe;
  sparse.moe = read_moe(config, family);
  LayerSpec dense;
  dense.attention = attention;
  for (int64_t i = 0; i < layers; ++i) {
    model.layers.push_back(moe[static_cast<size_t>(i)] ? sparse : dense);
    if (!is_sparse(model.layers.back())) model.layers.back().dense_width = config.integer("intermediate_size");
  }
}

void write_hf_layers(const ModelSpec& model, const HfFamily& family, ordered_json& config) {
  const MoeSpec& m = std::find_if(model.layers.begin(), model.layers.end(), is_sparse)->moe;
  int64_t dense_width = m.width * m.top_k;
  std::vector<int64_t> dense_layers;
  for (int64_t i = 0; i < model.layer_count(); ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    if (is_sparse(layer)) continue;
    dense_width = layer.dense_width;
    dense_layers.push_back(i);
  }
  config[family.experts] = m.experts;
  config["num_experts_per_tok"] = m.top_k;
  config["intermediate_size"] = dense_width;
  config[family.expert_width] = m.width;  // the same key, in families without dense layers
  if (!family.renormalises) config["norm_topk_prob"] = m.renormalise;
  if (family.moe_layers == HfMoeLayers::by_step) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = dense_layers;
  }
  if (family.moe_layers == HfMoeLayers::after_first) config["first_k_dense_replace"] = std::ssize(dense_layers);
  if (family.scales_groups) write_scales_groups(m, family, config);
  if (family.aux_loss == HfAuxLoss::of_model) {
    config["router_aux_loss_coef"] = model.aux_loss_coef;
  } else {
    config["aux_loss_alpha"] = model.aux_loss_coef;
    config["seq_aux"] = model.sequence_aux;
  }
}

}  // namespace mw
