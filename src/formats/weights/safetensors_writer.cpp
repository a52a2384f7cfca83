#include "formats/weights/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace mw {
namespace {

// A JSON string literal. Names come from model files, so bad UTF-8 is a data error.
std::string quote(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(Exit::data, fmt::format("safetensors: expected a name in UTF-8, got \"{}\"", printable(text)),
         "rename the tensor");
  }
}

}  // namespace

void SafetensorsWriter::declare(const std::string& name, std::string_view dtype, const std::vector<int64_t>& shape) {
  MW_CHECK(!file_.is_open(), "tensor \"{}\" declared after begin()", name);
  const auto refuse = [&](const std::string& what) {
    fail(Exit::data, fmt::format("safetensors: tensor \"{}\": {}", printable(name), what),
         "give each tensor a unique name, a known dtype and a shape below 2^63 bytes");
  };
  quote(name);
  if (name == "__metadata__") refuse("the name is reserved");
  if (safetensors_dtype_bits(dtype) == 0) refuse(fmt::format("expected a known dtype, got \"{}\"", printable(dtype)));
  const int64_t bytes = safetensors_bytes(dtype, shape);
  if (bytes < 0)
    refuse(fmt::format("shape [{}] is negative, too large or not a whole number of bytes", fmt::join(shape, ", ")));
  if (!index_.emplace(name, tensors_.size()).second) refuse("declared twice");
  tensors_.push_back({.entry = {.name = name, .dtype = std::string(dtype), .shape = shape, .begin = 0, .end = bytes}});
}

void SafetensorsWriter::set_metadata(const std::string& key, const std::string& value) {
  MW_CHECK(!file_.is_open(), "metadata \"{}\" set after begin()", key);
  quote(key);
  quote(value);
  metadata_[key] = value;
}

void SafetensorsWriter::begin(const std::string& path, Order order) {
  MW_CHECK(!file_.is_open(), "{}: begin() called twice", path);
  std::vector<size_t> sequence(tensors_.size());
  std::iota(sequence.begin(), sequence.end(), size_t{0});
  if (order == Order::by_name) {
    std::sort(sequence.begin(), sequence.end(),
              [&](size_t a, size_t b) { return tensors_[a].entry.name < tensors_[b].entry.name; });
  }

  std::string header = "{";
  if (!metadata_.empty()) {
    std::vector<std::string> items;
    for (const auto& [key, value] : metadata_) items.push_back(quote(key) + ":" + quote(value));
    header += fmt::format("\"__metadata__\":{{{}}}", fmt::join(items, ","));
  }
  int64_t offset = 0;
  for (const size_t at : sequence) {
    SafetensorsEntry& entry = tensors_[at].entry;
    const int64_t bytes = entry.end - entry.begin;
    entry.begin = offset;
    if (__builtin_add_overflow(offset, bytes, &offset)) {
      fail(Exit::data, fmt::format("{}: the tensors together exceed 2^63 bytes", path),
           "write the tensors to several files");
    }
    entry.end = offset;
    if (header.size() > 1) header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quote(entry.name),
                          entry.dtype, fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > static_cast<size_t>(kSafetensorsHeaderLimit)) {
    fail(Exit::data,
         fmt::format("{}: a header of {} bytes exceeds the {} that readers accept", path, header.size(),
                     kSafetensorsHeaderLimit),
         "write fewer tensors per file");
  }

  file_ = OutputFile(path);
  const uint64_t length = header.size();
  file_.append(std::as_bytes(std::span(&length, 1)));
  file_.append(std::as_bytes(std::span(header)));
  buffer_offset_ = file_.appended();
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  MW_CHECK(file_.is_open(), "tensor \"{}\" written before begin()", name);
  const auto at = index_.find(std::string(name));
  MW_CHECK(at != index_.end(), "{}: tensor \"{}\" was not declared", file_.path(), name);
  Pending& tensor = tensors_[at->second];
  const int64_t left = tensor.entry.end - tensor.entry.begin - tensor.written;
  MW_CHECK(bytes.size() <= static_cast<size_t>(left), "{}: tensor \"{}\" has {} bytes left, got {}", file_.path(), name,
           left, bytes.size());
  file_.write_at(buffer_offset_ + tensor.entry.begin + tensor.written, bytes);
  tensor.written += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  MW_CHECK(file_.is_open(), "finish() before begin()");
  for (const Pending& tensor : tensors_) {
    const int64_t size = tensor.entry.end - tensor.entry.begin;
    MW_CHECK(tensor.written == size, "{}: tensor \"{}\": {} of {} bytes were written", file_.path(), tensor.entry.name,
             tensor.written, size);
  }
  file_.finish();
}

}  // namespace mw
