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
  // Opens or creates, and keeps other writers from the file. Errors (all functions): Exit::data naming the path and the
  // system's reason, or that another process writes it.
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
  int64_t broken = 0;  // of the last line, 1 if it was dropped because it is no JSON object, such as one cut by a crash
};

// To be called before a run resumes at `step`: removes the lines with a larger "step", and a broken last line; lines
// without a step stay. The file is replaced atomically (that which a link names), and not touched when nothing is
// removed; a missing file counts as empty, and so does what is no regular file. Errors: also for a broken line in front
// of others, which no run writes: the file is another one, and stays as it is.
TruncatedLines truncate_after_step(const std::string& path, int64_t step);

// To be called before a run begins at step 1. Renames a file with lines: adds ".1" to its name, or the first number
// that is free. Returns the new name; "" where there is no file, or an empty one.
std::string set_lines_aside(const std::string& path);
// The same for a run that goes on from a checkpoint of another one, whose lines both need: the file stays, too.
std::string copy_lines_aside(const std::string& path);

}  // namespace mw
