// Hugging Face `config.json` of the families of config/hf_families.h, in the v4 and v5 dialects, to a ModelSpec and
// back.
#pragma once

#include <string>

#include "config/model_spec.h"

namespace mw {

// Errors: config, naming the file and the field. A family or feature that is known but not built is Exit::unsupported.
// Nothing is taken from class defaults: a field that decides numbers must be there (eps of OLMoE alone may be absent:
// 1e-5).
ModelSpec read_hf_config(const std::string& path);
ModelSpec parse_hf_config(const std::string& text, const std::string& where);

// The v4 dialect, without multi-token prediction, which both old and new readers take. Errors: unsupported for an
// architecture no family can name.
std::string write_hf_config(const ModelSpec& model, const std::string& torch_dtype);

// A config.json with what `source`, another of the same model, says beyond it: ids of special tokens, lengths, the
// names of remote code. Not what told of its weights: their type and quantisation. Errors: config, naming `where`.
std::string extend_hf_config(const std::string& config, const std::string& source, const std::string& where);

// The type of the weights that a config.json names, "bfloat16" or "float32", in either dialect; "" where it names none.
std::string hf_weight_dtype(const std::string& config, const std::string& where);

}  // namespace mw
