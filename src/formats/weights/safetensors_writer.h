// Streaming writer of safetensors: tensors are declared first, then filled in pieces of any size and in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/io/output_file.h"
#include "formats/weights/safetensors.h"

namespace mw {

// Not thread-safe. The file becomes visible at its path only in finish(); a writer destroyed earlier leaves nothing
// behind.
class SafetensorsWriter {
 public:
  enum class Order { by_name, as_declared };

  // Declares a tensor; before begin(). Errors: Exit::data on an unknown dtype, a negative or overflowing shape, a name
  // that is already used, reserved or not UTF-8.
  void declare(const std::string& name, std::string_view dtype, const std::vector<int64_t>& shape);
  // Sets an entry of the "__metadata__" map; a later value replaces an earlier one.
  void set_metadata(const std::string& key, const std::string& value);

  // Creates `path.tmp` and writes the header, padded so that the buffer starts at a multiple of 8 bytes.
  // Errors: Exit::data naming the path and the system's reason.
  void begin(const std::string& path, Order order = Order::by_name);
  // Appends bytes to this tensor. Errors: Exit::data when the disk is full; Exit::internal on an undeclared name or
  // more bytes than declared.
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Data written so far survives a crash. Errors: Exit::data naming the path.
  void sync() { file_.sync(); }
  // Errors: Exit::internal naming a tensor that is not complete; Exit::data when the file cannot be synced or renamed.
  void finish();

 private:
  struct Pending {
    SafetensorsEntry entry;
    int64_t written = 0;  // bytes
  };

  std::vector<Pending> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
  OutputFile file_;
  int64_t buffer_offset_ = 0;
};

}  // namespace mw
