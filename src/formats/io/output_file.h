// An output file that becomes visible only when it is complete: written as `path.tmp`, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mw {

// Movable, not copyable, not thread-safe. When destroyed before finish(), it removes `path.tmp` (unless
// keep_unfinished() was called) and leaves `path` as it was. Errors (all functions): Exit::data naming the path and the
// system's reason (disk full, no permission...).
class OutputFile {
 public:
  OutputFile() = default;
  explicit OutputFile(const std::string& path);  // creates or empties `path.tmp`
  // Continues after the first `size` bytes of the `path.tmp` that an interrupted run left and cuts off the rest. Errors
  // also when the file is shorter.
  static OutputFile resume(const std::string& path, int64_t size);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void append(std::span<const std::byte> bytes);  // after all earlier appends
  void sync();                                    // data written so far survives a crash
  void finish();                                  // sync, rename to `path`, sync the folder
  void keep_unfinished() { keep_ = true; }        // `path.tmp` stays when this is destroyed before finish()
  bool is_open() const { return fd_ >= 0; }
  int64_t appended() const { return appended_; }  // bytes
  const std::string& path() const { return path_; }

 private:
  void discard() noexcept;

  std::string path_;
  int fd_ = -1;
  int64_t appended_ = 0;
  bool keep_ = false;
};

}  // namespace mw
