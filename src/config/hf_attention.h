// Attention in a Hugging Face `config.json`.
#pragma once

#include "config/hf_families.h"
#include "config/hf_fields.h"

namespace mw {

// width: the model's hidden size. Errors: config, unsupported.
AttentionSpec read_hf_attention(const HfFields& config, const HfFamily& family, int64_t width);

// The window of each of so many layers, 0: none. Errors: config, unsupported.
std::vector<int64_t> read_hf_windows(const HfFields& config, const HfFamily& family, int64_t layers);

// The same fields, into an object of the v4 dialect.
void write_hf_windows(const ModelSpec& model, const HfFamily& family, nlohmann::ordered_json& config);
void write_hf_attention(const AttentionSpec& attention, const HfFamily& family, nlohmann::ordered_json& config);

}  // namespace mw
