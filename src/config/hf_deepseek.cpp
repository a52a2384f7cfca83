#include "config/hf_deepseek.h"

#include <cmath>

#include "config/hf_rope.h"

namespace mw {
namespace {

AttentionSpec read_attention(const HfFields& f, bool v3) {
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
  constexpr int64_t kMost = 1 << 14;
  if (a.latent.nope_dim < 1 || a.latent.nope_dim > kMost)
    f.wrong("qk_nope_head_dim", "1 to 16384", f.raw("qk_nope_head_dim"));
  if (a.latent.rope_dim < 1 || a.latent.rope_dim > kMost)
    f.wrong("qk_rope_head_dim", "1 to 16384", f.raw("qk_rope_head_dim"));
  a.head_dim = a.latent.nope_dim + a.latent.rope_dim;
  const HfRope rope = read_hf_rope(f, true);
  a.rope_theta = rope.theta;
  a.yarn = rope.yarn;
  const bool neighbours = !v3 || f.flag_or("rope_interleave", true);
  a.rope_pairs = neighbours ? RopePairs::neighbours : RopePairs::halves;
  return a;
}

// V2 ranks groups by their best expert, V3 by the sum of its two best.
void read_groups(const HfFields& f, bool v3, MoeSpec& m) {
  const std::string method = f.has("topk_method") || !v3 ? f.text("topk_method") : "noaux_tc";
  if (!v3 && method == "greedy") return;
  if (method != (v3 ? "noaux_tc" : "group_limited_greedy"))
    f.unsupported(fmt::format("topk_method \"{}\"", printable(method)));
  m.groups = f.integer("n_group");
  m.kept_groups = f.integer("topk_group");
  if (m.groups > 1 && v3) m.group_best = 2;
}

MoeSpec read_moe(const HfFields& f, bool v3) {
  MoeSpec m;
  m.experts = f.integer_of({"n_routed_experts", "num_experts", "num_local_experts"});
  m.top_k = f.integer("num_experts_per_tok");
  m.width = f.integer("moe_intermediate_size");
  const int64_t shared = f.integer_or("n_shared_experts", 0);
  if (shared < 0 || shared > 1024) f.wrong("n_shared_experts", "0 to 1024", f.raw("n_shared_experts"));
  if (m.width < 1 || m.width > (1 << 24)) f.wrong("moe_intermediate_size", "1 to 2^24", f.raw("moe_intermediate_size"));
  m.shared_width = shared * m.width;
  m.score = v3 ? ScoreFunction::sigmoid : ScoreFunction::softmax;
  if (f.has("scoring_func") && f.text("scoring_func") != (v3 ? "sigmoid" : "softmax"))
    f.unsupported(fmt::format("scoring_func \"{}\" in a {} model", printable(f.text("scoring_func")),
                              v3 ? "deepseek_v3" : "deepseek_v2"));
  m.selection_bias = v3;
  m.renormalise = f.flag("norm_topk_prob");
  // The family's own code then leaves out routed_scaling_factor, and Hugging Face's does not renormalise.
  if (m.renormalise && !v3) f.unsupported("norm_topk_prob = true in a deepseek_v2 model");
  m.scale = f.real("routed_scaling_factor");
  read_groups(f, v3, m);
  return m;
}

}  // namespace

void read_deepseek(const HfFields& f, ModelSpec& model) {
  const bool v3 = model.family == "deepseek_v3";
  if (f.flag_or("mlp_bias", false)) f.unsupported("mlp_bias");
  if (f.integer_or("moe_layer_freq", 1) != 1) f.unsupported("a moe_layer_freq other than 1");
  // Hugging Face's models have no auxiliary loss, and its configs may leave it out.
  model.aux_loss_coef = f.real_or("aux_loss_alpha", 0);
  model.sequence_aux = model.aux_loss_coef > 0 ? f.flag("seq_aux") : f.flag_or("seq_aux", false);
  if (model.aux_loss_coef > 0 && !model.sequence_aux) f.unsupported("seq_aux = false with a positive aux_loss_alpha");
  model.mtp_layers = f.integer_or("num_nextn_predict_layers", 0);

  LayerSpec sparse;
  sparse.attention = read_attention(f, v3);
  sparse.feed_forward = FeedForwardKind::moe;
  sparse.moe = read_moe(f, v3);
  LayerSpec dense;
  dense.attention = sparse.attention;
  dense.feed_forward = FeedForwardKind::dense;

  const int64_t layers = f.integer("num_hidden_layers"), first = f.integer("first_k_dense_replace");
  if (layers < 1 || layers > 10000) f.wrong("num_hidden_layers", "1 to 10000", f.raw("num_hidden_layers"));
  if (first < 0 || first > layers)
    f.wrong("first_k_dense_replace", fmt::format("0 to num_hidden_layers = {}", layers),
            f.raw("first_k_dense_replace"));
  if (first > 0) dense.dense_width = f.integer("intermediate_size");
  for (int64_t i = 0; i < layers; ++i) model.layers.push_back(i < first ? dense : sparse);
}

void write_deepseek(const ModelSpec& model, nlohmann::ordered_json& out) {
  const bool v3 = model.family == "deepseek_v3";
  const LayerSpec& first = model.layers.front();
  const LayerSpec& sparse = model.layers.back();
  const AttentionSpec& a = sparse.attention;
  const MoeSpec& m = sparse.moe;
  out["num_key_value_heads"] = a.heads;
  out["q_lora_rank"] = a.latent.q_rank > 0 ? nlohmann::ordered_json(a.latent.q_rank) : nlohmann::ordered_json(nullptr);
  out["kv_lora_rank"] = a.latent.kv_rank;
  out["qk_nope_head_dim"] = a.latent.nope_dim;
  out["qk_rope_head_dim"] = a.latent.rope_dim;
  out["v_head_dim"] = a.latent.value_dim;
  if (a.yarn.factor > 1)
    out["max_position_embeddings"] = std::llround(a.yarn.factor * static_cast<double>(a.yarn.positions));
  out["rope_scaling"] = write_hf_rope_scaling(a.yarn);
  if (v3) out["rope_interleave"] = a.rope_pairs == RopePairs::neighbours;
  out["n_routed_experts"] = m.experts;
  out["n_shared_experts"] = m.shared_width / m.width;
  out["moe_intermediate_size"] = m.width;
  out["intermediate_size"] = first.feed_forward == FeedForwardKind::dense ? first.dense_width : m.width * m.top_k;
  out["first_k_dense_replace"] = model.layer_count() - model.moe_layer_count();
  out["moe_layer_freq"] = 1;
  out["scoring_func"] = v3 ? "sigmoid" : "softmax";
  out["topk_method"] = v3 ? "noaux_tc" : m.groups > 1 ? "group_limited_greedy" : "greedy";
  out["n_group"] = m.groups;
  out["topk_group"] = m.kept_groups;
  out["norm_topk_prob"] = m.renormalise;
  out["routed_scaling_factor"] = m.scale;
  out["aux_loss_alpha"] = model.aux_loss_coef;
  out["seq_aux"] = model.sequence_aux;
  if (v3) out["num_nextn_predict_layers"] = 0;
}

}  // namespace mw
