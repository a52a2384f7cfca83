// Reading safetensors: one file, or a Hugging Face model folder of shards.
//
// Bytes: u64 little-endian N | N bytes of JSON beginning with '{', maybe padded with spaces | the buffer.
// JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)} relative to the buffer, and an optional
// "__metadata__" map of strings. Row-major, little-endian; the tensors cover the buffer without holes or overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace mw {

// The hint where a folder's tensors are not those of its config.json.
inline constexpr const char* kOtherWeights = "use the config.json of these weights, or download the whole folder again";

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes, relative to the buffer

  int64_t element_count() const;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by name
  std::map<std::string, std::string> metadata;
  int64_t buffer_offset = 0;  // bytes from the start of the file
};

// Longest header accepted, in bytes: the limit of the reference implementation.
inline constexpr int64_t kSafetensorsHeaderLimit = 100'000'000;

// Bits per element of a dtype string, 0 when it is not known.
int64_t safetensors_dtype_bits(std::string_view dtype);
// Bytes of a tensor of a known dtype; -1 where the count overflows 64 bits, a size is negative, or the elements do not
// fill whole bytes.
int64_t safetensors_bytes(std::string_view dtype, const std::vector<int64_t>& shape);
// The dtype string of an element type: "F32", "BF16", ...
std::string_view safetensors_dtype(DType dtype);

// Parses and validates the header of a file given as bytes. Errors: Exit::data naming `path_for_messages`, the tensor,
// the expected value and the actual one; a header that passes describes the buffer exactly.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_bytes, std::string_view path_for_messages);

// A memory-mapped file. Movable; entries and data stay valid as long as the file object. The file on disk must not be
// truncated meanwhile.
class SafetensorsFile {
 public:
  // Errors: those of MappedFile and parse_safetensors_header.
  explicit SafetensorsFile(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::string& path() const { return file_.path(); }
  // nullptr when there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  // The bytes of a tensor of this file; their address may be unaligned.
  std::span<const std::byte> data(const SafetensorsEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

// Reads elements first_element, first_element + stride, .. of a tensor, converted from F32, BF16, F16 or F8_E4M3.
// Errors: Exit::data naming file, tensor and dtype for any other dtype; Exit::internal when out of range.
void read_as_f32(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first_element,
                 std::span<float> out, int64_t stride = 1);
// The same from I64 or I32.
void read_as_i64(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first_element,
                 std::span<int64_t> out);

// The location of a tensor in a folder; both null when it does not exist.
struct SafetensorsLocation {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  explicit operator bool() const { return entry != nullptr; }
};

// All tensors of a model folder by name. Movable; locations stay valid as long as the set.
class SafetensorsSet {
 public:
  SafetensorsLocation find(std::string_view name) const;
  // Errors: Exit::data naming the folder, the tensor and the nearest name.
  SafetensorsLocation require(std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  std::vector<std::string> names() const;  // sorted
  const std::string& path() const { return path_; }

 private:
  friend SafetensorsSet open_safetensors_folder(const std::string& dir);
  void add_tensors();

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, SafetensorsLocation> tensors_;  // keys point into entries of files_
};

// Opens `dir/model.safetensors`, or else the shards that `dir/model.safetensors.index.json` names. Every tensor of
// every shard is found. Errors: Exit::data when neither is there, a shard is missing or damaged, the index names a path
// outside the folder or a tensor that is not in its file, or two files contain the same tensor.
SafetensorsSet open_safetensors_folder(const std::string& dir);

// The "weight_map" of an index: tensor -> file name. `text` is the JSON. Errors: Exit::data naming `path_for_messages`.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view path_for_messages);

}  // namespace mw
