// Rotary embedding in a Hugging Face `config.json`: rope_theta and rope_scaling (v4), rope_parameters (v5).
#pragma once

#include "config/hf_fields.h"
#include "config/model_spec.h"

namespace mw {

struct HfRope {
  double theta = 0;
  YarnSpec yarn;  // factor 1: none
};

// Errors: config where the two dialects contradict each other; unsupported for types other than default and, where
// `allow_yarn`, yarn, and for its options attention_factor and truncate.
HfRope read_hf_rope(const HfFields& config, bool allow_yarn);

// The v4 rope_scaling object, null without YaRN.
nlohmann::ordered_json write_hf_rope_scaling(const YarnSpec& yarn);

}  // namespace mw
