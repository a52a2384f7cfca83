// Disk space needed by a run's checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "layout/plan.h"

namespace mw {

// Free bytes of the file system of `path`, or of its nearest existing parent folder; none where the system cannot say.
std::optional<int64_t> free_disk_bytes(const std::string& path);

struct DiskNeed {
  int64_t each = 0;         // bytes of one checkpoint
  int64_t checkpoints = 0;  // most at one time, beside existing ones: an old one is deleted after a new one is complete
  int64_t existing = 0;
  std::optional<int64_t> free;
  int64_t bytes() const { return each * checkpoints; }
};

// The need of a run that continues from `step` and writes into checkpoint.dir; zero without checkpoint.dir. To be
// called on one rank. Errors: checkpoint, when the folder cannot be read.
DiskNeed checkpoint_need(const Plan& plan, int64_t step);

// Errors: checkpoint, when the need exceeds the free space, naming the largest checkpoint.keep that fits.
void check_disk(const CheckpointSpec& checkpoint, const DiskNeed& need);

}  // namespace mw
