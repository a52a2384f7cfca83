#include "config/hf_family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace mw {
namespace {

using Features = std::vector<std::string>;  // in the words of the [model] table

void note(Features& features, bool has, const char* feature) {
  if (has) features.emplace_back(feature);
}

bool is_moe(const LayerSpec& layer) { return layer.feed_forward == FeedForwardKind::moe; }

// What a model has that none of the families has.
Features foreign_features(const LayerSpec& sparse) {
  Features found;
  note(found, sparse.activation == Activation::gelu, "activation = \"gelu\"");
  note(found, sparse.activation == Activation::relu, "activation = \"relu\"");
  note(found, sparse.activation == Activation::clamped_swiglu, "activation = \"clamped_swiglu\"");
  const MoeSpec& m = sparse.moe;
  const bool sigmoid = m.score == ScoreFunction::sigmoid;
  note(found, sigmoid && !m.selection_bias, "score = \"sigmoid\" without selection_bias");
  note(found, m.groups > 1 && m.group_best != (sigmoid ? 2 : 1),
       sigmoid ? "expert_groups with group_best other than 2" : "expert_groups with group_best other than 1");
  return found;
}

// What Mixtral, Qwen3-MoE, OLMoE and MiniMax-M2 lack.
Features beyond_grouped(const LayerSpec& sparse) {
  const MoeSpec& m = sparse.moe;
  Features found;
  note(found, m.shared_width > 0, "shared_experts");
  note(found, m.scale != 1, "routed_scale");
  note(found, m.groups > 1, "expert_groups");
  return found;
}

Features beyond_qwen(const LayerSpec& sparse) {
  const AttentionSpec& a = sparse.attention;
  Features found;
  note(found, sparse.moe.score == ScoreFunction::sigmoid, "score = \"sigmoid\"");
  note(found, a.qk_norm != QkNorm::per_head, "qk_norm other than \"per_head\"");
  note(found, a.clip_qkv > 0, "clip_qkv");
  return found;
}

Features beyond_mixtral(const ModelSpec& model, const LayerSpec& sparse) {
  Features found;
  note(found, sparse.moe.score == ScoreFunction::sigmoid, "score = \"sigmoid\"");
  note(found, sparse.attention.qk_norm != QkNorm::none, "qk_norm");
  note(found, sparse.attention.clip_qkv > 0, "clip_qkv");
  note(found, !sparse.moe.renormalise, "renormalise = false");
  note(found, model.moe_layer_count() < model.layer_count(), "dense_layers");
  return found;
}

Features beyond_olmoe(const ModelSpec& model, const LayerSpec& sparse) {
  const AttentionSpec& a = sparse.attention;
  Features found;
  note(found, sparse.moe.score == ScoreFunction::sigmoid, "score = \"sigmoid\"");
  note(found, a.qk_norm != QkNorm::full_width, "qk_norm other than \"full_width\"");
  note(found, a.heads * a.head_dim != model.width, "head_dim other than width / heads");
  note(found, model.moe_layer_count() < model.layer_count(), "dense_layers");
  return found;
}

Features beyond_glm4(const LayerSpec& sparse) {
  Features found;
  note(found, sparse.moe.score == ScoreFunction::softmax, "score = \"softmax\"");
  note(found, sparse.attention.qk_norm == QkNorm::full_width, "qk_norm = \"full_width\"");
  note(found, sparse.attention.clip_qkv > 0, "clip_qkv");
  return found;
}

Features beyond_minimax(const ModelSpec& model, const LayerSpec& sparse) {
  Features found;
  note(found, sparse.moe.score == ScoreFunction::softmax, "score = \"softmax\"");
  note(found, sparse.attention.qk_norm != QkNorm::full_width, "qk_norm other than \"full_width\"");
  note(found, sparse.attention.clip_qkv > 0, "clip_qkv");
  note(found, !sparse.moe.renormalise, "renormalise = false");
  note(found, model.moe_layer_count() < model.layer_count(), "dense_layers");
  return found;
}

// transformers refuses such widths, or cannot rotate views of them.
Features beyond_deepseek_v2(const ModelSpec& model, const LayerSpec& sparse) {
  const MoeSpec& m = sparse.moe;
  const AttentionSpec& a = sparse.attention;
  Features found;
  note(found, model.width % a.heads != 0, "a width that is no multiple of heads");
  note(found, a.latent.nope_dim % 2 != 0 || a.latent.kv_rank % 2 != 0, "odd nope_dim or kv_rank");
  note(found, m.score == ScoreFunction::sigmoid, "score = \"sigmoid\"");
  note(found, m.renormalise, "renormalise");
  return found;
}

Features beyond_deepseek_v3(const MoeSpec& m) {
  Features found;
  note(found, m.score == ScoreFunction::softmax, "score = \"softmax\"");
  return found;
}

struct Candidate {
  const char* family;
  Features beyond;  // what keeps the model out of it
};

std::vector<Candidate> weigh_families(const ModelSpec& model, const LayerSpec& sparse) {
  const AttentionSpec& a = sparse.attention;
  if (a.is_latent())
    return {{"deepseek_v2", beyond_deepseek_v2(model, sparse)}, {"deepseek_v3", beyond_deepseek_v3(sparse.moe)}};
  std::vector<Candidate> all = {{"qwen3_moe", beyond_qwen(sparse)},
                                {"mixtral", beyond_mixtral(model, sparse)},
                                {"olmoe", beyond_olmoe(model, sparse)},
                                {"minimax_m2", beyond_minimax(model, sparse)}};
  const Features common = beyond_grouped(sparse);
  for (Candidate& candidate : all) candidate.beyond.insert(candidate.beyond.end(), common.begin(), common.end());
  all.push_back({"glm4_moe", beyond_glm4(sparse)});
  return all;
}

[[noreturn]] void refuse(const std::string& what) {
  fail(Exit::unsupported, fmt::format("this model fits no Hugging Face family: {}", what),
       "change these keys of [model] to fit one family; without export, the model still trains and samples");
}

}  // namespace

ModelSpec fit_hf_family(ModelSpec model) {
  if (model.family != "native") return model;
  const auto sparse = std::find_if(model.layers.begin(), model.layers.end(), is_moe);
  if (sparse == model.layers.end()) refuse("it has no MoE layers (model.dense_layers = model.layers)");
  if (const Features foreign = foreign_features(*sparse); !foreign.empty())
    refuse(fmt::format("none supports {}", fmt::join(foreign, ", ")));
  const std::vector<Candidate> candidates = weigh_families(model, *sparse);
  for (const Candidate& candidate : candidates) {
    if (!candidate.beyond.empty()) continue;
    model.family = candidate.family;
    for (LayerSpec& layer : model.layers)
      if (layer.moe.groups == 1) layer.moe.group_best = 1;  // which then means nothing
    return model;
  }
  std::vector<std::string> reasons;
  for (const Candidate& c : candidates)
    reasons.push_back(fmt::format("{} does not support {}", c.family, fmt::join(c.beyond, ", ")));
  refuse(fmt::format("{}", fmt::join(reasons, "; ")));
}

}  // namespace mw
