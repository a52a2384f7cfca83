// A file that grows by whole records, visible at once.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace mw {

// For one thread. Movable, not copyable. Errors: Exit::data naming the path and the system's reason, with the hint.
class AppendFile {
 public:
  enum class Open { append, anew };  // opens or creates; or creates a file that must not be there
  AppendFile(std::string path, Open how, std::string hint);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept
      : path_(std::move(other.path_)), hint_(std::move(other.hint_)), fd_(std::exchange(other.fd_, -1)) {}
  AppendFile& operator=(AppendFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(hint_, other.hint_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // In one system call where the system takes it all: a crash breaks at most the last record.
  void append(std::string_view record);

 private:
  [[noreturn]] void fail_system(const char* what) const;

  std::string path_, hint_;
  int fd_ = -1;
};

}  // namespace mw
