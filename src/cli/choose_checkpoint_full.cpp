#include "cli/run_commands.h"
#include "train/checkpoint/model_path.h"

namespace mw {

std::string choose_checkpoint(Comm& comm, const std::string& path, std::FILE* out) {
  std::string checkpoint;
  if (comm.rank() == 0) {
    const ModelPath found = find_model_path(path);
    checkpoint = require_checkpoint(found);
    if (const std::string line = describe_choice(found); !line.empty() && out != nullptr)
      std::fputs((line + "\n").c_str(), out);
    if (out != nullptr) std::fflush(out);
  }
  return broadcast_text(comm, checkpoint, 0);
}

}  // namespace mw
