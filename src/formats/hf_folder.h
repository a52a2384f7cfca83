// A Hugging Face model folder whose weights are those of a model.
#pragma once

#include <string>
#include <vector>

#include "formats/hf_names.h"
#include "formats/safetensors.h"

namespace mw {

struct HfFolder {
  SafetensorsSet files;
  std::vector<HfTensor>
      tensors;       // those of the model, under the names that this folder has: experts one by one or fused
  std::string note;  // for the log: what is left out on purpose, multi-token prediction; "" for nothing
};

// Maps DIR's safetensors and checks every name and shape against the model, from the headers alone. Errors: data,
// naming the tensor that is missing, extra or misshapen; nothing is dropped silently.
HfFolder open_hf_folder(const ModelSpec& model, const std::string& dir);

// A tied model may carry lm_head.weight all the same: then it must be the embedding. Reads both. Errors: data.
void check_tied_head(const HfFolder& folder, const ModelSpec& model);

}  // namespace mw
