#include "train/data/read_ahead.h"

#include <system_error>

namespace mw {

void ReadAhead::start(const StepPart& part) {
  part_ = part;
  batches_ = {};
  try {
    batches_ = std::async(std::launch::async, [&order = order_, part] { return read_step(order, part); });
  } catch (const std::system_error&) {  // the system allows no more threads: take() reads
  }
}

std::vector<MicroBatch> ReadAhead::take(const StepPart& part) {
  if (batches_.valid() && part == part_) return batches_.get();
  return read_step(order_, part);
}

}  // namespace mw
