// TensorBoard event files: scalars over steps. docs/formats.md has them byte by byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/append_file.h"

namespace mw {

struct Scalar {
  std::string tag;  // "loss/train": TensorBoard groups by what stands before the slash
  double value = 0;
};

// Appends to a new file in a folder, for one thread. Movable, not copyable.
class EventFileWriter {
 public:
  // Makes the folder if need be, and in it `events.out.tfevents.SECONDS.HOST.PROCESS`. Values of steps beyond
  // `last_step` in older files of the folder are taken back: TensorBoard drops them. Errors (all functions): Exit::data
  // naming the path and the system's reason.
  EventFileWriter(const std::string& folder, int64_t last_step);

  // One record in one system call.
  void write(int64_t step, std::span<const Scalar> scalars);

 private:
  AppendFile file_;
};

}  // namespace mw
