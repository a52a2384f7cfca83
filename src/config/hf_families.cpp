#include "config/hf_families.h"

#include <algorithm>

namespace mw {

const std::vector<HfFamily>& hf_families() {
  static const std::vector<HfFamily> all = {
      {.name = "mixtral",
       .architecture = "MixtralForCausalLM",
       .renormalises = true,
       .experts = "num_local_experts",
       .expert_width = "intermediate_size",
       .moe_block = "block_sparse_moe.",
       .gate = "w1",
       .up = "w3",
       .down = "w2"},
      {.name = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .qk_norm = QkNorm::per_head,
       .moe_layers = HfMoeLayers::by_step},
      {.name = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .qk_norm = QkNorm::full_width,
       .clips_qkv = true,
       .expert_width = "intermediate_size"},
      {.name = "deepseek_v2",
       .architecture = "DeepseekV2ForCausalLM",
       .attention = AttentionKind::latent,
       .moe_layers = HfMoeLayers::after_first,
       .scales_groups = true,
       .aux_loss = HfAuxLoss::of_sequences,
       .experts = "n_routed_experts"},
      {.name = "deepseek_v3",
       .architecture = "DeepseekV3ForCausalLM",
       .attention = AttentionKind::latent,
       .moe_layers = HfMoeLayers::after_first,
       .score = ScoreFunction::sigmoid,
       .selection_bias = true,
       .scales_groups = true,
       .group_best = 2,
       .aux_loss = HfAuxLoss::of_sequences,
       .experts = "n_routed_experts"},
  };
  return all;
}

std::vector<std::string> hf_family_names() {
  std::vector<std::string> names;
  for (const HfFamily& family : hf_families()) names.emplace_back(family.name);
  return names;
}

const HfFamily* find_hf_family(const std::string& name) {
  const std::vector<HfFamily>& all = hf_families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const HfFamily& family) { return family.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace mw
