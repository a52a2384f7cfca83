// Maps a model's Hugging Face tensor names to the parameter table. Every Hugging Face tensor is a contiguous range of
// one of our tensors, because both are row-major and ours only stack theirs; or it is one with its axes in another
// order (formats/weights/axis_order.h).
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
  // Where the order of axes differs, which only follow the first: the sizes of the parameter's axes as the file has
  // them, and the place there of each axis of the parameter. Else empty.
  std::vector<int64_t> file_sizes = {};
  std::vector<size_t> axes = {};
  bool is_mxfp4 = false;  // stored in two tensors (formats/weights/mxfp4.h)
  int64_t numel() const;
};

// The tensors of a model folder as it is written: with one tensor per expert, but for families that always fuse them.
// Errors: unsupported for a family without Hugging Face
// names.
std::vector<HfTensor> hf_tensors(const ModelSpec& model);

// The same with the routed experts fused per layer (mlp.experts.gate_up_proj [E, 2F, D], down_proj [E, D, F]): the
// in-memory names of transformers 5, used by golden gradients and by fused checkpoints.
std::vector<HfTensor> hf_fused_tensors(const ModelSpec& model);

// The same with experts in MXFP4; empty for families that have none.
std::vector<HfTensor> hf_mxfp4_tensors(const ModelSpec& model);

}  // namespace mw
