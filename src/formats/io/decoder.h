// Decompressors, one for each format of compressed files.
#pragma once

#include <memory>
#include <span>
#include <string_view>

namespace mw {

// Not thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  struct Result {
    bool in_frame = false;        // what has been read ends within a frame
    const char* error = nullptr;  // why the data is not valid; null: it is
  };
  // Decompresses from the front of `from` to the front of `to`, and removes from both what was read and written. It may
  // have more to write without reading more. Frames may follow each other.
  virtual Result decode(std::span<const char>& from, std::span<char>& to) = 0;
};

// Null in a build without the library. Errors: std::bad_alloc.
std::unique_ptr<Decoder> make_zstd_decoder();
std::unique_ptr<Decoder> make_zlib_decoder();  // of gzip files

struct Compression {
  std::string_view suffix;  // of file names: ".gz"
  const char* name;         // of the format, and of the program that decompresses it
  const char* package;      // of the library
  std::unique_ptr<Decoder> (*make_decoder)();
};

// How a file with this name is compressed; null: it is not.
const Compression* find_compression(std::string_view path);

}  // namespace mw
