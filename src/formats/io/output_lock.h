// A lock file that keeps a second process from writing the same output.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"

namespace mw {

// Another process holds the lock.
class LockHeld : public Error {
 public:
  using Error::Error;
};

// Creates a file of this name that contains the process id and host, and holds a lock on it until destroyed, which also
// removes the file. A process that dies leaves the file, but not the lock. Nothing is locked where the file system does
// not support locks (Lustre, as it is often mounted). Neither movable nor copyable.
class OutputLock {
 public:
  // Waits up to `patience` for another holder, which may be about to exit. Errors: LockHeld (Exit::data) when it still
  // holds the lock, with the contents of its file; Exit::data naming the system's reason.
  explicit OutputLock(const std::string& path, std::chrono::milliseconds patience = {});
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  bool is_held() const { return fd_ >= 0; }
  // Whether the file that it holds is no longer there under its name: it keeps nobody away.
  bool is_lost() const;

 private:
  std::string path_;
  int fd_ = -1;
};

// Whether the file names a process of another host: such a process may be gone without the file system knowing yet.
bool is_held_elsewhere(const std::string& path);

}  // namespace mw
