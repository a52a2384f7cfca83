// Loads the weights of a Hugging Face model folder into the parameters of a rank.
#pragma once

#include <string>

#include "engine/engine.h"

namespace mw {

// Fills the master weights from DIR's safetensors (experts one by one or fused), reading only this rank's parts, and
// repacks. Returns a line for the log when something is ignored on purpose. Errors: as open_hf_folder.
std::string import_hf_weights(Engine& engine, const std::string& dir);

}  // namespace mw
