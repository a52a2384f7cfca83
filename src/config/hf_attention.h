// Attention in a Hugging Face `config.json`.
#pragma once

#include "config/hf_families.h"
#include "config/hf_fields.h"

namespace mw {

// width: the model's hidden size. Errors: config, unsupported.
AttentionSpec read_hf_attention(const HfFields& config, const HfFamily& family, int64_t width);

// The same fields, into an object of the v4 dialect.
void write_hf_attention(const AttentionSpec& attention, const HfFamily& family, nlohmann::ordered_json& config);

}  // namespace mw
