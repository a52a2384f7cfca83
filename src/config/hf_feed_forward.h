// Feed-forwards in a Hugging Face `config.json`: which layers are MoE, experts, router and load-balance loss.
#pragma once

#include "config/hf_families.h"
#include "config/hf_fields.h"

namespace mw {

// Fills the layers of `model`, each with `attention`, and its load-balance loss. Errors: config, unsupported.
void read_hf_layers(const HfFields& config, const HfFamily& family, const AttentionSpec& attention, ModelSpec& model);

// The same fields, into an object of the v4 dialect. The model has an MoE layer.
void write_hf_layers(const ModelSpec& model, const HfFamily& family, nlohmann::ordered_json& config);

}  // namespace mw
