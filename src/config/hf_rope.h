// Rotary embedding in a Hugging Face `config.json`: rope_theta and rope_scaling (v4), rope_parameters (v5).
#pragma once

#include <optional>

#include "config/hf_fields.h"
#include "config/model_spec.h"

namespace mw {

struct HfRope {
  double theta = 0;
  YarnSpec yarn;                  // factor 1: none
  std::optional<double> partial;  // partial_rotary_factor, inside or beside rope_parameters
  bool has_type = false;          // whether the config says which type it is
};

// Reads the types default and yarn and, with heads of `alpha_of_head` elements, dynamic with alpha, which multiplies
// theta by alpha^(h / (h - 2)). Errors: config where the two dialects contradict each other; unsupported for other
// types, and for YaRN's option attention_factor.
HfRope read_hf_rope(const HfFields& config, int64_t alpha_of_head = 0);

// The v4 rope_scaling object, null without YaRN.
nlohmann::ordered_json write_hf_rope_scaling(const YarnSpec& yarn);

}  // namespace mw
