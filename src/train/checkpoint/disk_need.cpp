#include "train/checkpoint/disk_need.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint/checkpoint.h"

namespace mw {

namespace fs = std::filesystem;

std::optional<int64_t> free_disk_bytes(const std::string& path) {
  std::error_code error;
  for (fs::path at = fs::absolute(path, error); !error && !at.empty(); at = at.parent_path()) {
    const fs::space_info space = fs::space(at, error);
    if (!error) return static_cast<int64_t>(space.available);
    if (error != std::errc::no_such_file_or_directory || at == at.root_path()) return std::nullopt;
    error.clear();
  }
  return std::nullopt;
}

DiskNeed checkpoint_need(const Plan& plan, int64_t step) {
  const CheckpointSpec& spec = plan.run.checkpoint;
  if (spec.dir.empty()) return {};
  const int64_t steps = plan.run.train.steps, every = spec.every;
  // One at the end, unless it falls on one of the others.
  const int64_t saves = every == 0 ? 1 : std::max<int64_t>(1, (steps + every - 1) / every - step / every);
  DiskNeed need;
  need.existing = std::ssize(list_checkpoints(spec.dir));
  need.each = checkpoint_bytes(plan);
  need.checkpoints = std::max<int64_t>(1, std::min(saves, spec.keep + 1 - need.existing));
  need.free = free_disk_bytes(spec.dir);
  return need;
}

void check_disk(const CheckpointSpec& checkpoint, const DiskNeed& need) {
  if (!need.free || need.bytes() <= *need.free) return;
  const int64_t fitting = *need.free / std::max<int64_t>(need.each, 1);
  const int64_t fewer = fitting - 1 + need.existing;  // beside it, one is being written
  fail(Exit::checkpoint,
       fmt::format("checkpoint.dir = \"{}\": the run writes up to {} of {} at a time (checkpoint.keep "
                   "= {}, and one that is being written), {} in all, and {} are free",
                   checkpoint.dir, counted(need.checkpoints, "more checkpoint"), format_bytes(need.each),
                   checkpoint.keep, format_bytes(need.bytes()), format_bytes(*need.free)),
       fitting >= 1 && fewer >= 1
           ? fmt::format("checkpoint.keep={} fits; or free space, or set checkpoint.dir to a larger disk", fewer)
           : "free space, or set checkpoint.dir to a larger disk");
}

}  // namespace mw
