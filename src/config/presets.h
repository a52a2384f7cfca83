// Named models: `model.preset` of a run file.
#pragma once

#include <string>
#include <vector>

#include "config/model_spec.h"

namespace mw {

struct Preset {
  std::string name;
  NativeModel table;
  // What no key of the [model] table can say.
  std::string family = "native";
  double aux_loss_coef = kNativeAuxLossCoef;
  bool sequence_aux = false;
  YarnSpec yarn = {};
  void (*refine)(LayerSpec& layer, int64_t index) = nullptr;
};

// Models of the X-MoE and Piper papers, and public models. Those equal what the importer makes of their config.json,
// without multi-token prediction: they train from random weights and export to their Hugging Face family.
const std::vector<Preset>& presets();
std::vector<std::string> preset_names();

// Errors: config, with the names of all presets.
const Preset& find_preset(const std::string& name);

}  // namespace mw
