// TensorBoard event files: scalars by step. The byte layout is in docs/formats.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/io/append_file.h"

namespace mw {

struct Scalar {
  std::string tag;  // "loss/train": TensorBoard groups scalars by the part before the slash
  double value = 0;
};

// Appends to a new file in a folder. Not thread-safe. Movable, not copyable.
class EventFileWriter {
 public:
  // Creates the folder if needed, and in it `events.out.tfevents.SECONDS.HOST.PROCESS`. Makes TensorBoard drop the
  // values of steps beyond `last_step` in older files of the folder. Errors (all functions): Exit::data naming the path
  // and the system's reason.
  EventFileWriter(const std::string& folder, int64_t last_step);

  // Appends one record, in one system call.
  void write(int64_t step, std::span<const Scalar> scalars);

 private:
  AppendFile file_;
};

}  // namespace mw
