// The Hugging Face families as data: what all models of a family have in common, and how its config.json and its
// tensors name things.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/model_spec.h"

namespace mw {

// Which layers are MoE: all; as decoder_sparse_step and mlp_only_layers say; all after first_k_dense_replace layers; as
// mlp_layer_types says, and without it all after the first; or each moe_layer_interval-th from moe_layer_start_index to
// moe_layer_end_index.
enum class HfMoeLayers : uint8_t { all, by_step, after_first, by_types, by_range };

// The load-balance loss: none; over the tokens of all layers, with router_aux_loss_coef; or over each sequence, with
// DeepSeek's keys aux_loss_alpha and seq_aux.
enum class HfAuxLoss : uint8_t { none, of_model, of_sequences };

// The projections of attention that have a bias where config.json asks for one: none, which means that this is refused;
// queries, keys and values; or these and the output.
enum class HfBias : uint8_t { none, qkv, all };

// Which layers have a sliding window, where there is one: none, which means that windows are refused; all (Mixtral,
// Qwen3); or as layer_types says, and without it every other one from the first on below max_window_layers (Qwen2),
// those from max_window_layers on (dots1), or every other one from the first on (gpt-oss).
enum class HfWindows : uint8_t { none, all, every_other, after_first, alternate };

// Keys and parts of names that a family does not have are empty.
struct HfFamily {
  const char *name, *architecture;  // model_type, and the class that `architectures` names
  const char* other_name = "";      // model_type of remote code with the same models; export writes `name`

  // Attention.
  AttentionKind attention = AttentionKind::grouped;
  QkNorm qk_norm = QkNorm::none;
  const char* qk_norm_key = "";  // of a flag, where only some models have the norm
  bool norm_after_rotary = false;
  bool clips_qkv = false;       // clip_qkv
  bool rotates_part = false;    // partial_rotary_factor
  const char* rotary_dim = "";  // key of the number of rotated elements, which stands in for partial_rotary_factor
  RopePairs rope_pairs = RopePairs::halves;  // of grouped attention
  bool stretches_theta = false;              // rope type "dynamic" with alpha
  HfBias bias = HfBias::none;
  const char* bias_key = "attention_bias";
  bool bias_by_default = false;
  HfWindows windows = HfWindows::none;
  bool windows_by_flag = false;  // none without use_sliding_window
  int64_t default_window = 0;    // where config.json has no sliding_window
  int64_t window_border = 0;     // where it has no max_window_layers
  bool sinks = false;
  bool reads_interleave = false;  // rope_interleave, of latent attention
  bool ties_by_default = false;   // tie_word_embeddings
  bool yarn_by_default = false;   // where config.json says nothing, transformers takes YaRN

  // Feed-forwards. All have norm_topk_prob, except those that always renormalise.
  HfMoeLayers moe_layers = HfMoeLayers::all;
  ScoreFunction score = ScoreFunction::softmax;
  bool selection_bias = false;
  bool renormalises = false;
  bool scales_groups = false;  // DeepSeek's keys routed_scaling_factor, topk_method, n_group and topk_group
  const char* scale = "";      // key of the factor of chosen weights, in families without those
  int64_t group_best = 1;      // experts whose scores rank a group
  int64_t shared_experts = 0;  // as wide as a routed one, in all models
  bool shared_gate = false;
  bool moe_bias = false;  // of the router and of experts
  Activation activation = Activation::swiglu;
  HfAuxLoss aux_loss = HfAuxLoss::of_model;
  int64_t mtp_layers = 0;  // multi-token prediction layers of a folder whose config.json does not say how many

  // Keys of config.json.
  const char* experts = "num_experts";
  const char* top_k = "num_experts_per_tok";  // a number, or a list of one for each layer
  const char* expert_width = "moe_intermediate_size";
  const char* shared_count = "";  // of shared experts as wide as a routed one
  const char* shared_width = "";  // of all shared experts together
  const char* least_sum = "";     // that renormalisation divides by at least
  // Keys that may be there, and the only value that is implemented, as JSON; or another key, of the same value. Of a
  // list, each element has it.
  std::vector<std::pair<const char*, const char*>> fixed = {};

  // Parts of tensor names.
  const char *q_norm = "q_norm", *k_norm = "k_norm";
  const char* moe_block = "mlp.";
  const char* router = "gate";
  const char* router_bias = "gate.e_score_correction_bias";
  bool bias_is_row = false;  // [1, E] instead of [E]
  bool f32_router = false;   // written in fp32, whatever the others are
  const char* shared = "shared_experts";
  // Other names of the router, its bias and shared experts in files whose experts are fused.
  const char *fused_router = "", *fused_router_bias = "", *fused_shared = "";
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";  // of a routed expert
  // Experts are always fused, as [E, in, out], with columns of gate and up in turn; or in MXFP4 (hf_names.h).
  bool transposed_experts = false;
};

// Whether a key or a part of a name is there.
inline bool has_name(const char* name) { return *name != '\0'; }

const std::vector<HfFamily>& hf_families();
std::vector<std::string> hf_family_names();
// By either of its names; null for any other, such as "native".
const HfFamily* find_hf_family(const std::string& name);

}  // namespace mw
