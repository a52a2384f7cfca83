// Weights between a Hugging Face model folder and the parameters of a rank.
#pragma once

#include <string>

#include "train/engine.h"

namespace mw {

// Checks every name and shape of DIR's safetensors against the model, from the headers alone: before any memory is
// taken for it. Returns a line for the log where something is left out on purpose: multi-token prediction. Errors:
// data, naming the tensor that is missing, extra or misshapen.
std::string check_hf_folder(const ModelSpec& model, const std::string& dir);

// Fills the master weights from DIR's safetensors, per expert or fused, reading only what lies on this rank, and
// repacks. Errors: data, naming the tensor that is missing, extra or misshapen; nothing is dropped silently.
std::string import_hf_weights(Engine& engine, const std::string& dir);

// Writes DIR/config.json, model-0000x-of-0000y.safetensors of at most `shard_bytes` and the index, from a model held
// whole by this process (EP = 1); bf16 or f32. Other files of `source_dir` (tokenizer and such) are copied through when
// it is not empty. Re-reads what it wrote and compares names and shapes. Errors: data, unsupported.
void export_hf_weights(const Engine& engine, const std::string& dir, DType dtype, const std::string& source_dir,
                       int64_t shard_bytes = int64_t{5'000'000'000});

}  // namespace mw
