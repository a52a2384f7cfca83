// Metrics as JSON lines: one object per line, appended and visible at once.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "formats/append_file.h"

namespace mw {

// Appends to a file, for one thread. Movable, not copyable.
class JsonLinesWriter {
 public:
  // Opens or creates. Errors (all functions): Exit::data naming the path and the system's reason.
  explicit JsonLinesWriter(const std::string& path);

  // One line in one system call, so that a crash breaks at most the last line. NaN and Inf become null; bad UTF-8 is
  // replaced.
  void write(const nlohmann::ordered_json& object);

 private:
  AppendFile file_;
};

struct TruncatedLines {
  int64_t kept = 0;
  int64_t beyond = 0;  // lines dropped because their step is larger
  int64_t broken = 0;  // lines dropped because they are not JSON objects, such as a last line cut by a crash
};

// Before a resume at `step`: drops the lines whose "step" is larger, and broken lines; lines without a step stay.
// The file is replaced in one move, and left alone when nothing is dropped; a missing file is an empty one.
TruncatedLines truncate_after_step(const std::string& path, int64_t step);

}  // namespace mw
