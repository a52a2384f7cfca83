// What the configs of DeepSeek-V2 and V3 say otherwise than those of the other families.
#pragma once

#include "config/hf_fields.h"
#include "config/model_spec.h"

namespace mw {

inline bool is_deepseek(const std::string& family) { return family == "deepseek_v2" || family == "deepseek_v3"; }

// Attention, feed-forwards and auxiliary loss of a model whose family is set, from `config`. Errors: config,
// unsupported.
void read_deepseek(const HfFields& config, ModelSpec& model);

// The same fields, into an object of the v4 dialect.
void write_deepseek(const ModelSpec& model, nlohmann::ordered_json& config);

}  // namespace mw
