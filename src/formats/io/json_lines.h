// Metrics as JSON lines: one object per line, appended and visible to readers at once.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "formats/io/append_file.h"

namespace mw {

// Appends to a file. Not thread-safe. Movable, not copyable.
class JsonLinesWriter {
 public:
  // Opens or creates. Errors (all functions): Exit::data naming the path and the system's reason.
  explicit JsonLinesWriter(const std::string& path);

  // Appends one line in one system call, so that a crash damages at most the last line. NaN and Inf become null;
  // invalid UTF-8 is replaced.
  void write(const nlohmann::ordered_json& object);

 private:
  AppendFile file_;
};

struct TruncatedLines {
  int64_t kept = 0;
  int64_t beyond = 0;  // lines dropped because their step is larger
  int64_t broken = 0;  // lines dropped because they are not JSON objects, such as a last line cut by a crash
};

// To be called before a run resumes at `step`: removes the lines with a larger "step" and broken lines; lines without a
// step stay. The file is replaced atomically, and not touched when nothing is removed; a missing file counts as empty.
TruncatedLines truncate_after_step(const std::string& path, int64_t step);

// To be called before a run begins at step 1. Renames a file with lines: adds ".1" to its name, or the first number
// that is free. Returns the new name; "" where there is no file, or an empty one.
std::string set_lines_aside(const std::string& path);

}  // namespace mw
