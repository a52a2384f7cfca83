#include "formats/io/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/host.h"
#include "base/text.h"

namespace mw {
namespace {

[[noreturn]] void fail_system(const char* what, const std::string& path, int code, const char* hint) {
  fail(Exit::data, fmt::format("cannot {} {}: {} (errno {})", what, path, std::strerror(code), code), hint);
}

int open_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail_system("create", path, errno, "check that the folder exists and can be written to");
  return fd;
}

// The one before may have removed the file between our opening and locking it: that lock keeps nobody away.
bool is_still_there(int fd, const std::string& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

std::string describe_process() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

std::string read_holder(int fd) {
  char text[128];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  return size > 0 ? printable({text, static_cast<size_t>(size)}, sizeof text) : "another process";
}

}  // namespace

OutputLock::OutputLock(const std::string& path, std::chrono::milliseconds patience) : path_(path) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (fd_ < 0) {
    const int fd = open_file(path);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int code = errno;
      const std::string holder = read_holder(fd);
      ::close(fd);
      if (code == ENOSYS || code == EOPNOTSUPP || code == ENOLCK) {
        ::unlink(path.c_str());
        return;
      }
      if (code != EWOULDBLOCK) fail_system("lock", path, code, "try again, or write to another file system");
      if (std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        continue;
      }
      throw LockHeld(Exit::data, fmt::format("{} is locked: {} writes this output", path, holder),
                     "wait until it ends, or choose another output; if that host is gone for good, remove the file");
    }
    if (is_still_there(fd, path)) fd_ = fd;
    else ::close(fd);
  }
  const std::string self = describe_process();
  const bool told = ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, self.data(), self.size(), 0) == std::ssize(self);
  if (told) return;
  const int code = errno;
  ::close(fd_);
  fail_system("write", path, code, "free some space, or write to another file system");
}

bool is_held_elsewhere(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const std::string holder = read_holder(fd);
  ::close(fd);
  return !holder.ends_with(" on " + host_name());
}

bool OutputLock::is_lost() const { return is_held() && !is_still_there(fd_, path_); }

OutputLock::~OutputLock() {
  if (!is_held()) return;
  if (!is_lost()) ::unlink(path_.c_str());  // while it is locked
  ::close(fd_);
}

}  // namespace mw
