// Opens a Hugging Face model folder and checks its weights against a model.
#pragma once

#include <string>
#include <vector>

#include "formats/weights/hf_names.h"
#include "formats/weights/safetensors.h"

namespace mw {

struct HfFolder {
  SafetensorsSet files;
  std::vector<HfTensor>
      tensors;       // the model's tensors, under this folder's names (experts one by one, fused or in MXFP4)
  std::string note;  // for the log: names what is ignored on purpose (multi-token prediction); "" if nothing is
};

// Memory-maps DIR's safetensors and checks every name and shape against the model, from the headers alone. Errors:
// data, naming the tensor that is missing, unexpected or of the wrong shape; nothing is ignored silently.
HfFolder open_hf_folder(const ModelSpec& model, const std::string& dir);

// The folder of a tied model may contain lm_head.weight all the same: checks that it equals the embedding. Reads both.
// Errors: data.
void check_tied_head(const HfFolder& folder, const ModelSpec& model);

}  // namespace mw
