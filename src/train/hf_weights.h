// Weights of a Hugging Face model folder into the parameters of a rank.
#pragma once

#include <string>

#include "train/engine.h"

namespace mw {

// Fills the master weights from DIR's safetensors, per expert or fused, reading only what lies on this rank, and
// repacks. Returns a line for the log where something is left out on purpose. Errors: as open_hf_folder.
std::string import_hf_weights(Engine& engine, const std::string& dir);

}  // namespace mw
