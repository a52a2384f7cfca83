// A file read from front to back, decompressed on the way where its name ends in .zst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace mw {

// For one thread. Errors (all functions): Exit::data naming the path and the reason.
class ByteInput {
 public:
  virtual ~ByteInput() = default;
  // Fills the front of `out`; returns how much, 0 only at the end of the file.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t consumed() const = 0;  // bytes of the file itself that were needed so far
};

// Errors also: Exit::unsupported for .zst in a build without zstd.
std::unique_ptr<ByteInput> open_byte_input(const std::string& path);
std::unique_ptr<ByteInput> open_plain_input(const std::string& path);
std::unique_ptr<ByteInput> open_zstd_input(const std::string& path);

}  // namespace mw
