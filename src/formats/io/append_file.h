// An append-only file of whole records, each visible to readers at once.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace mw {

// Not thread-safe. Movable, not copyable. Errors: Exit::data naming the path and the system's reason, with `hint`.
class AppendFile {
 public:
  enum class Open { append, anew };  // append: opens or creates; anew: creates the file, which must not exist yet
  AppendFile(std::string path, Open how, std::string hint);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept
      : path_(std::move(other.path_)),
        hint_(std::move(other.hint_)),
        waiting_(std::move(other.waiting_)),
        fd_(std::exchange(other.fd_, -1)) {}
  AppendFile& operator=(AppendFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(hint_, other.hint_);
    std::swap(waiting_, other.waiting_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Keeps other processes that ask, too, from the file, until it is closed. Returns false if one of them has it; true,
  // too, for devices and pipes, and where the file system has no locks.
  bool lock();

  // Writes one record, in one system call if possible: a crash can damage only the last record. After an error the
  // record, or the rest of it, waits in memory for the next call, which writes it first: the file has no gap and no
  // half record once there is space again. Beyond 64 MiB that wait, further records are dropped.
  void append(std::string_view record);

 private:
  [[noreturn]] void fail_system(const char* what) const;

  std::string path_, hint_;
  std::string waiting_;  // what could not be written yet
  int fd_ = -1;
};

}  // namespace mw
