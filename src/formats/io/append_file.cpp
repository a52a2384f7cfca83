#include "formats/io/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mw {

static constexpr size_t kMostWaiting = size_t{64} << 20;

void AppendFile::fail_system(const char* what) const {
  fail(Exit::data, fmt::format("cannot {} {}: {} (errno {})", what, path_, std::strerror(errno), errno), hint_);
}

AppendFile::AppendFile(std::string path, Open how, std::string hint) : path_(std::move(path)), hint_(std::move(hint)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (how == Open::append ? O_APPEND : O_EXCL), 0644);
  if (fd_ < 0) fail_system(how == Open::append ? "open" : "create");
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool AppendFile::lock() {
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return true;
  return ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void AppendFile::append(std::string_view record) {
  if (waiting_.size() <= kMostWaiting) waiting_ += record;
  while (!waiting_.empty()) {
    const ssize_t written = ::write(fd_, waiting_.data(), waiting_.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_system("write");
    }
    waiting_.erase(0, static_cast<size_t>(written));
  }
}

}  // namespace mw
