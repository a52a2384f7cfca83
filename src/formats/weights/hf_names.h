// Maps a model's Hugging Face tensor names to the parameter table. Every Hugging Face tensor is a contiguous range of
// one of our tensors, because both are row-major and ours only stack theirs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_spec.h"

namespace mw {

struct HfTensor {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in]
  std::string param;           // "layers.0.attn.wq"
  int64_t begin = 0;           // first element in the global parameter
  bool keeps_f32 = false;      // always written in fp32
  int64_t numel() const;
};

// The tensors of a model folder, with one tensor per expert. Errors: unsupported for a family without Hugging Face
// names.
std::vector<HfTensor> hf_tensors(const ModelSpec& model);

// The same with the routed experts fused per layer (mlp.experts.gate_up_proj [E, 2F, D], down_proj [E, D, F]): the
// in-memory names of transformers 5, used by golden gradients and by fused checkpoints.
std::vector<HfTensor> hf_fused_tensors(const ModelSpec& model);

}  // namespace mw
