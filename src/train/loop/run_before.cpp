#include "train/loop/run_before.h"

#include "base/error.h"
#include "planner/layout.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_folder.h"

namespace mw {

std::optional<RunSpec> run_before(const RunSpec& run) {
  try {
    const std::string folder = folder_to_resume(run);
    if (folder.empty()) return std::nullopt;
    RunSpec stored = read_stored_run(folder, {});
    if (layout_of(stored) == layout_of(run)) return stored;
  } catch (const Error&) {
  }
  return std::nullopt;
}

bool resumes(const RunSpec& run) {
  try {
    return !folder_to_resume(run).empty();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace mw
