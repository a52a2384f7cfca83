// Keeps a second process from what one is writing.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"

namespace mw {

// The error of a lock that another one holds.
class LockHeld : public Error {
 public:
  using Error::Error;
};

// Holds a file of this name, with the process and its host in it, locked until it is destroyed, which removes the file.
// A process that dies leaves the file, but no lock. Nothing is held where the file system takes no locks (Lustre, as it
// is often mounted). Neither movable nor copyable.
class OutputLock {
 public:
  // Waits for another holder, which may be about to end, for `patience`. Errors: LockHeld (Exit::data) when it
  // still holds it, with what that one wrote; Exit::data naming the system's reason.
  explicit OutputLock(const std::string& path, std::chrono::milliseconds patience = {});
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  bool is_held() const { return fd_ >= 0; }

 private:
  std::string path_;
  int fd_ = -1;
};

// Whether the file names a process of another host: it may be gone without its file system knowing yet.
bool is_held_elsewhere(const std::string& path);

}  // namespace mw
