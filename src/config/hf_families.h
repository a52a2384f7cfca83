// The Hugging Face families as data: what all models of a family have in common, and how its config.json and its
// tensors name things.
#pragma once

#include <string>
#include <vector>

#include "config/model_spec.h"

namespace mw {

// Which layers are MoE: all; as decoder_sparse_step and mlp_only_layers say; or all after first_k_dense_replace layers.
enum class HfMoeLayers : uint8_t { all, by_step, after_first };

// The load-balance loss: over the tokens of all layers, with a coefficient of its own, or over each sequence, with
// DeepSeek's keys aux_loss_alpha and seq_aux.
enum class HfAuxLoss : uint8_t { of_model, of_sequences };

struct HfFamily {
  const char *name, *architecture;  // model_type, and the class that `architectures` names

  // Attention.
  AttentionKind attention = AttentionKind::grouped;
  QkNorm qk_norm = QkNorm::none;
  bool clips_qkv = false;  // clip_qkv

  // Feed-forwards. All have norm_topk_prob, except those that always renormalise.
  HfMoeLayers moe_layers = HfMoeLayers::all;
  ScoreFunction score = ScoreFunction::softmax;
  bool selection_bias = false;
  bool renormalises = false;
  bool scales_groups = false;  // n_shared_experts, routed_scaling_factor, topk_method, n_group and topk_group
  int64_t group_best = 1;      // experts whose scores rank a group
  HfAuxLoss aux_loss = HfAuxLoss::of_model;

  // Keys of config.json.
  const char* experts = "num_experts";
  const char* expert_width = "moe_intermediate_size";

  // Parts of tensor names.
  const char* moe_block = "mlp.";
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";  // of a routed expert
};

const std::vector<HfFamily>& hf_families();
std::vector<std::string> hf_family_names();
// Null for any other name, such as "native".
const HfFamily* find_hf_family(const std::string& name);

}  // namespace mw
