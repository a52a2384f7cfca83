// The output of `inspect` for a checkpoint or a Hugging Face model folder: a few lines of the form "label  text".
#pragma once

#include <string>

namespace mw {

// Model, optimizer, step, loss, layout, data, date and size. Where a fact is unknown, because the stored run file or
// the model's folder cannot be read, its line says so. Errors: checkpoint.
std::string describe_checkpoint(const std::string& folder);

// Family and size, weights, tokenizer. Errors: config, unsupported (from its config.json).
std::string describe_hf_folder(const std::string& dir);

}  // namespace mw
