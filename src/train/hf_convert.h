// Hugging Face model folder to checkpoint and back, tensor by tensor: no rank holds a model, or a whole tensor of one.
#pragma once

#include <cstdint>
#include <string>

#include "comm/comm.h"
#include "spec/run_spec.h"

namespace mw {

// Writes the model folder HF_DIR as the checkpoint DIR/step-00000000, of weights alone: moments are zero then. Ranks
// share its tensors. Returns lines for the log. Collective over the world. Errors: config, data, unsupported, as
// reading the folder gives them; numeric, when a weight is not finite; checkpoint, also when DIR/step-00000000 is
// complete.
std::string import_hf_folder(Comm& world, const std::string& hf_dir, const std::string& dir);

// The model that export writes for a run: of its Hugging Face folder, or its [model] table as one of the family that it
// fits, with the run's auxiliary loss. Errors: config; unsupported, for a table that fits no family.
ModelSpec hf_model_of(const RunSpec& run);

struct HfExport {
  std::string checkpoint;  // one folder, of any layout
  std::string out;         // must not exist; appears when it is complete, and is OUT.tmp until then
  std::string source;      // whose config.json and tokenizer go along; "": the folder that the run began with, if any
  std::string dtype;       // "bf16", "fp32", or "model": as config.json says, else as the run trained
  int64_t shard_bytes = int64_t{5'000'000'000};  // most bytes of weights in a file
};

// Writes OUT: config.json, shards and their index, and the source's other files (tokenizer and such). The model of a
// [model] table becomes one of the family that it fits. Ranks share the shards. Names, shapes and types are read back
// before OUT appears. Returns a line for the log. Collective over the world. Errors: config, checkpoint, data;
// unsupported, for a model that fits no family.
std::string export_checkpoint(Comm& world, const HfExport& request);

}  // namespace mw
