// Classifies the paths given to commands that read a model: run folder, checkpoint, Hugging Face model folder.
#pragma once

#include <cstdint>
#include <string>

namespace mw {

enum class ModelPathKind : uint8_t {
  checkpoint,  // a complete one
  unfinished,  // a checkpoint without DONE
  run,         // a folder with at least one complete checkpoint
  empty_run,   // a run folder without a complete checkpoint
  hf_folder,   // holds a config.json
  other_folder,
  file,
  missing,
};

struct ModelPath {
  ModelPathKind kind = ModelPathKind::missing;
  std::string path;        // without a slash at its end
  std::string checkpoint;  // complete: the path itself, the newest of a run, the newest beside an unfinished or missing
                           // checkpoint; "" where there is none
  int64_t checkpoints = 0;  // complete ones of a run
};

// Errors: checkpoint, when the file system cannot answer.
ModelPath find_model_path(const std::string& path);

// The complete checkpoint that a command reads for this path. Errors: checkpoint, saying what the path is instead and
// what to name.
const std::string& require_checkpoint(const ModelPath& found);

// "using runs/text/step-00000300, the newest of 3 complete checkpoints"; "" unless the path is a run folder.
std::string describe_choice(const ModelPath& found);

}  // namespace mw
