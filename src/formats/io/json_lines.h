// Metrics as JSON lines: one object per line, appended and visible to readers at once.
#pragma once

#include <chrono>
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
  int64_t beyond = 0;  // lines removed because their step is larger
  int64_t broken = 0;  // lines removed because they are not JSON objects, such as a last line cut by a crash
};

// Waits until no other process writes the file, which may be about to exit. Errors: as above, when one still does.
void wait_for_writer(const std::string& path, std::chrono::milliseconds patience);

// Refuses a file of something else than metrics: one whose first line is broken, but not cut. Errors: as above.
void check_lines(const std::string& path);

// To be called before a run resumes at `step`. Goes back from the end of the file to the last line whose "step" is at
// most `step`, and cuts the file off at the first line behind it that is broken or has a larger step: the time that it
// takes does not depend on the length of the file. Completes a last line that only lacks its newline. A missing file
// counts as empty, and so do devices, pipes and names of open files (/dev/stdout). Errors: also those of check_lines().
TruncatedLines truncate_after_step(const std::string& path, int64_t step);

// To be called before a run begins at step 1. Renames a file with lines (that which a link names): adds ".1" to its
// name, or the first number that is free. Returns the new name; "" where there is no such file, or an empty one.
// Errors: also those of check_lines().
std::string set_lines_aside(const std::string& path);
// The same for a run that goes on from a checkpoint of another one, whose lines both need: the file stays, too.
std::string copy_lines_aside(const std::string& path);

}  // namespace mw
