// Converts a Hugging Face model folder to a checkpoint and back, tensor by tensor: no rank holds a whole model, or even
// a whole tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/comm.h"
#include "config/run_spec.h"

namespace mw {

// Import: writes the model folder HF_DIR as the checkpoint DIR/step-00000000, weights only (moments start at zero).
// Ranks share the tensors. Returns lines for the log. Collective over the world. Errors: config, data, unsupported,
// from reading the folder; numeric, when a weight is not finite; checkpoint, also when DIR/step-00000000 is already
// complete.
std::string import_hf_folder(Comm& world, const std::string& hf_dir, const std::string& dir);

// The model that export writes for a run: that of its Hugging Face folder, or its [model] table as the family that it
// fits, with the run's auxiliary loss. Errors: config; unsupported, for a table that fits no family.
ModelSpec hf_model_of(const RunSpec& run);

struct HfExport {
  std::string checkpoint;  // one folder, of any layout
  std::string out;         // must not exist; is named OUT.tmp until complete
  std::string
      source;  // folder whose config.json and tokenizer are copied; "": the one that the run started from, if any
  std::optional<DType> dtype = {};               // bf16 or f32; none: as config.json says, else as the run trained,
                                                 // and f32 for an imported model
  int64_t shard_bytes = int64_t{5'000'000'000};  // most bytes of weights per file
};

// Export: writes OUT with config.json, shards and their index, and the source's other files (tokenizer etc.), or, for a
// [model] table, sample.tokenizer. A [model] table is written as the family that it fits. Ranks share the shards.
// Names, shapes and dtypes are read back before OUT becomes visible. Returns a line for the log. Collective over the
// world. Errors: config, checkpoint, data; unsupported, for a model that fits no family.
std::string export_checkpoint(Comm& world, const HfExport& request);

}  // namespace mw
