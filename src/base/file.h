// Files: read-only memory maps and durable writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace mw {

// A read-only memory map of a whole file. Movable, not copyable. An empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  // Errors: Exit::data naming the path when it cannot be opened, is not a regular file or cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// Reads a whole file as text. Also works for files in /proc and /sys, which cannot be mapped. Errors: Exit::data naming
// the path; files above `limit` bytes are refused.
std::string read_text_file(const std::string& path, size_t limit = size_t{64} << 20);

// Writes to `path + ".tmp"`, calls fsync and renames: readers see the complete file or none. Errors: Exit::data naming
// the path; `path` is then as before.
void write_text_file_atomically(const std::string& path, const std::string& text);

// Creates the missing parent directories of a file. Errors: Exit::data naming the directory, or `path` if it is one.
void create_folder_of(const std::string& path);

// Whether this is, or links to, a device, a pipe or a socket: a rename would put a file in its place.
bool is_device_or_pipe(const std::string& path);

// Writes an output file that the user named: create_folder_of, then write_text_file_atomically. Devices and pipes are
// written to, and so is what a link points to. Errors: Exit::data naming the path.
void write_output_text(const std::string& path, const std::string& text);

// Checks before long work that write_output_text can write `path`: creates its folder, and for a moment its temporary
// file. Errors: as write_output_text.
void check_output(const std::string& path);

// What a link points to, whether it exists or not; other paths as they are.
std::string target_of_link(const std::string& path);

// Whether `path` exists. Errors: `code` naming the path, when the system cannot answer (no permission, name too long).
bool path_exists(const std::string& path, Exit code = Exit::data);

// Whether `name` is safe as a file name inside a directory: not empty, not hidden, without '/', ".." or a NUL byte.
bool is_plain_file_name(std::string_view name);

// fsync of a file or directory. Errors: Exit::data naming the path.
void sync_path(const std::string& path);

}  // namespace mw
