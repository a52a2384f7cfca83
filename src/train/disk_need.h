// The disk that the checkpoints of a run take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "spec/plan.h"

namespace mw {

// Free bytes of the file system of `path`, or of the nearest folder above it that exists; nothing where the system does
// not tell.
std::optional<int64_t> free_disk_bytes(const std::string& path);

struct DiskNeed {
  int64_t each = 0;         // bytes of one checkpoint
  int64_t checkpoints = 0;  // at most at a time, beside those that are there: old ones go once a new one is complete
  std::optional<int64_t> free;
  int64_t bytes() const { return each * checkpoints; }
};

// Of what a run that goes on from `step` writes into checkpoint.dir. Nothing without such a folder. For one rank.
// Errors: checkpoint, where the folder cannot be read.
DiskNeed checkpoint_need(const Plan& plan, int64_t step);

// Errors: checkpoint, where more is needed than is free, with the largest checkpoint.keep that fits.
void check_disk(const CheckpointSpec& checkpoint, const DiskNeed& need);

}  // namespace mw
