// What `inspect` prints of a checkpoint or of a Hugging Face model folder: a few lines, each "label  text".
#pragma once

#include <string>

namespace mw {

// Model, optimizer, step, loss, layout, data, date and size. What cannot be told, because the stored run file or the
// model's folder cannot be read, says so in its line. Errors: checkpoint.
std::string describe_checkpoint(const std::string& folder);

// Family and size, weights, tokenizer. Errors: config, unsupported, of its config.json.
std::string describe_hf_folder(const std::string& dir);

}  // namespace mw
