// Reads the next step while one is computed, so that no step waits for a slow file system.
#pragma once

#include <future>
#include <vector>

#include "train/data/data.h"

namespace mw {

class ReadAhead {
 public:
  // order must outlive this object.
  explicit ReadAhead(const SampleOrder& order) : order_(order) {}

  // Begins to read a step on a thread of its own, where the system allows one more. What another call began and nobody
  // took is dropped, once it is read.
  void start(const StepPart& part);
  // The micro-batches of a step: what start() began for the same part, for which it waits; others are read now. Errors:
  // those of read_step.
  std::vector<MicroBatch> take(const StepPart& part);

 private:
  const SampleOrder& order_;
  StepPart part_;
  std::future<std::vector<MicroBatch>> batches_;  // of part_; waits for its thread when it is destroyed
};

}  // namespace mw
