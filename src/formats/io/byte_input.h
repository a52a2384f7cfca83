// Sequential reading of a file, decompressed on the fly when its name says so (find_compression).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace mw {

// Not thread-safe. Errors (all functions): Exit::data naming the path and the reason, and in damaged compressed files
// the byte of the file.
class ByteInput {
 public:
  virtual ~ByteInput() = default;
  // Reads into the front of `out` and returns the number of bytes; 0 only at the end of the file.
  virtual size_t read(std::span<char> out) = 0;
  virtual int64_t consumed() const = 0;  // bytes of the (compressed) file consumed so far
};

// Errors also: Exit::unsupported in a build without the library that decompresses this file.
std::unique_ptr<ByteInput> open_byte_input(const std::string& path);

}  // namespace mw
