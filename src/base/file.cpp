#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace mw {
namespace {

// Closes a descriptor on every way out.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// O_NONBLOCK: a named pipe must not hang before it is refused.
constexpr int kRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

[[noreturn]] void fail_path(const char* what, const std::string& path) {
  const bool is_full = errno == ENOSPC || errno == EDQUOT;
  fail(Exit::data, fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)),
       is_full ? "free space there, or choose a path on another disk" : "check the path and its permissions");
}

// Removes a file that is incomplete, and fails for the reason of errno.
[[noreturn]] void fail_incomplete(const char* what, const std::string& path) {
  const int reason = errno;
  ::unlink(path.c_str());
  errno = reason;
  fail_path(what, path);
}

// Returns false for the reason of errno.
bool write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

// Beside the file that it becomes.
std::string temporary_of(const std::string& path) { return path + ".tmp"; }

Descriptor create_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail_path("create", path);
  return {fd};
}

size_t size_of_regular(const Descriptor& file, const std::string& path) {
  if (file.fd < 0) fail_path("open", path);
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail_path("stat", path);
  if (!S_ISREG(info.st_mode))
    fail(Exit::data, fmt::format("{} is not a regular file", path),
         "give the path of a file, not of a directory or device");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), kRead)};
  size_ = size_of_regular(file, path);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail_path("map", path);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    path_ = std::move(other.path_);
  }
  return *this;
}

std::string read_text_file(const std::string& path, size_t limit) {
  const Descriptor file{::open(path.c_str(), kRead)};
  const size_t told = size_of_regular(file, path);
  const auto refuse = [&](size_t bytes) {
    fail(Exit::data, fmt::format("{} has {} bytes, but a file of this kind has at most {}", path, bytes, limit),
         "check that the path names the intended file");
  };
  const bool of_the_kernel = path.starts_with("/proc/") || path.starts_with("/sys/");  // which tells no true sizes
  if (told > limit && !of_the_kernel) refuse(told);
  std::string text;
  for (;;) {
    char piece[1 << 14];
    const ssize_t got = ::read(file.fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_path("read", path);
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
    if (text.size() > limit) refuse(text.size());
  }
}

bool path_exists(const std::string& path, Exit code) {
  std::error_code error;
  const bool found = std::filesystem::exists(path, error);
  if (error)
    fail(code, fmt::format("cannot access {}: {}", path, error.message()), "check the path and its permissions");
  return found;
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find("..") == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

void sync_path(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_path("open", path);
  if (::fsync(file.fd) != 0) fail_path("sync", path);
}

void write_text_file_atomically(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_of(path);
  {
    const Descriptor file = create_file(temporary);
    if (!write_all(file.fd, text)) fail_incomplete("write", temporary);
    if (::fsync(file.fd) != 0) fail_incomplete("sync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_incomplete("rename", temporary);
  const size_t slash = path.find_last_of('/');
  sync_path(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

void create_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error, ignored;  // ignored: what else is wrong shows when the file is written
  if (path.ends_with('/') || std::filesystem::is_directory(path, ignored))
    fail(Exit::data, fmt::format("cannot write {}: it is a folder", path), "add the name of a file in it");
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error)
    fail(Exit::data, fmt::format("cannot create the folder {} for {}: {}", folder.native(), path, error.message()),
         "check the path and its permissions");
}

bool is_device_or_pipe(const std::string& path) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  using Type = std::filesystem::file_type;
  return kind == Type::character || kind == Type::block || kind == Type::fifo || kind == Type::socket;
}

std::string target_of_link(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path found = std::filesystem::canonical(path, error);
  if (!error) return found.native();
  return (std::filesystem::path(path).parent_path() / std::filesystem::read_symlink(path, error)).native();
}

void check_output(const std::string& path) {
  create_folder_of(path);
  if (is_device_or_pipe(path)) {  // a pipe would wait for its reader, who would then see its end
    if (::access(path.c_str(), W_OK) != 0) fail_path("open", path);
    return;
  }
  const std::string temporary = temporary_of(target_of_link(path));
  const Descriptor file = create_file(temporary);
  ::unlink(temporary.c_str());
}

void write_output_text(const std::string& path, const std::string& text) {
  create_folder_of(path);
  if (is_device_or_pipe(path)) {
    const Descriptor file{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
    if (file.fd < 0) fail_path("open", path);
    if (!write_all(file.fd, text)) fail_path("write", path);
    return;
  }
  write_text_file_atomically(target_of_link(path), text);
}

}  // namespace mw
