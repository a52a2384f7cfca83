#include "formats/io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace mw {
namespace {

[[noreturn]] void fail_system(const char* what, const std::string& path) {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  fail(Exit::data, fmt::format("cannot {} {}: {} (errno {})", what, path, std::strerror(code), code),
       full ? "free some space, raise the quota, or write to another file system"
            : "check that the folder exists and is writable");
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path) {
  const std::string temporary = path_ + ".tmp";
  fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_system("create", temporary);
}

OutputFile OutputFile::resume(const std::string& path, int64_t size) {
  const std::string temporary = path + ".tmp";
  OutputFile file;
  file.path_ = path;
  file.keep_ = true;  // whatever fails here, the work that is done stays
  file.fd_ = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC);
  if (file.fd_ < 0) fail_system("open", temporary);
  const off_t there = ::lseek(file.fd_, 0, SEEK_END);
  if (there < 0) fail_system("seek in", temporary);
  if (there < size)
    fail(Exit::data,
         fmt::format("{}: the interrupted run had written {} bytes, but the file has {} now", temporary, size, there),
         "start over with --restart");
  if (::ftruncate(file.fd_, size) != 0) fail_system("cut", temporary);
  file.appended_ = size;
  return file;
}

OutputFile::~OutputFile() { discard(); }

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      appended_(std::exchange(other.appended_, 0)),
      keep_(other.keep_) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  if (this != &other) {
    discard();
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
    appended_ = std::exchange(other.appended_, 0);
    keep_ = other.keep_;
  }
  return *this;
}

void OutputFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  if (!keep_) ::unlink((path_ + ".tmp").c_str());
}

void OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  MW_CHECK(fd_ >= 0 && offset >= 0, "write to {} at {}: not open", path_, offset);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_system("write", path_ + ".tmp");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void OutputFile::append(std::span<const std::byte> bytes) {
  write_at(appended_, bytes);
  appended_ += static_cast<int64_t>(bytes.size());
}

void OutputFile::sync() {
  MW_CHECK(fd_ >= 0, "sync of {}: not open", path_);
  if (::fsync(fd_) != 0) fail_system("sync", path_ + ".tmp");
}

void OutputFile::finish() {
  MW_CHECK(fd_ >= 0, "finish of {}: not open", path_);
  const std::string temporary = path_ + ".tmp";
  sync();
  if (::rename(temporary.c_str(), path_.c_str()) != 0) fail_system("rename", temporary);
  // Network file systems report a late write error at close; the data is synced already, so it is still said.
  if (::close(std::exchange(fd_, -1)) != 0) fail_system("close", path_);
  const size_t slash = path_.find_last_of('/');
  sync_path(slash == std::string::npos ? "." : path_.substr(0, slash + 1));
}

}  // namespace mw
