#include "formats/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/io/json_events.h"

namespace mw {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors buffers are read in place as little-endian");

constexpr const char* kFileHint = "the file is truncated, damaged or not safetensors: download or write it again";
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kRankLimit = 64;

// Bits per element.
constexpr std::array<std::pair<std::string_view, int64_t>, 22> kDtypes = {
    {{"F64", 64},    {"F32", 32},        {"F16", 16},    {"BF16", 16},   {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
     {"C64", 64},    {"I64", 64},        {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},
     {"U32", 32},    {"U16", 16},        {"U8", 8},      {"BOOL", 8}}};

// Builds the entries from the JSON events; what does not belong where it stands is refused.
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(std::string_view path, SafetensorsHeader* header) : path_(path), header_(header) {}

  void on_begin(bool is_object) override {
    const char* kind = is_object ? "an object" : "an array";
    switch (state_) {
      case State::start:
        if (!is_object) refuse("an object", kind);
        state_ = State::top;
        return;
      case State::top:
        if (!is_object) refuse("an object", kind);
        if (key_ == kMetadataKey) {
          if (std::exchange(metadata_seen_, true)) refuse("each key once", "a duplicate");
          state_ = State::metadata;
        } else {
          header_->entries.push_back({.name = key_, .dtype = {}, .shape = {}});
          fields_seen_ = 0;
          offset_count_ = 0;
          state_ = State::entry;
        }
        return;
      case State::entry:
        if (is_object || field_ == Field::dtype) refuse(expected(), kind);
        state_ = field_ == Field::shape ? State::shape : State::offsets;
        return;
      default: refuse(expected(), kind);
    }
  }

  void on_end() override {
    switch (state_) {
      case State::entry:
        if (fields_seen_ != 7) refuse("dtype, shape and data_offsets", "an entry without one of them");
        state_ = State::top;
        return;
      case State::offsets:
        if (offset_count_ != 2) refuse("two data_offsets", fmt::format("{}", offset_count_));
        state_ = State::entry;
        return;
      case State::shape: state_ = State::entry; return;
      default: state_ = State::top; return;
    }
  }

  void on_key(std::string& key) override {
    if (state_ != State::entry) {
      key_ = std::move(key);
      return;
    }
    if (key == "dtype") field_ = Field::dtype;
    else if (key == "shape") field_ = Field::shape;
    else if (key == "data_offsets") field_ = Field::offsets;
    else refuse("dtype, shape or data_offsets", fmt::format("key \"{}\"", printable(key)));
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((fields_seen_ & bit) != 0) refuse("each key once", fmt::format("a duplicate \"{}\"", key));
    fields_seen_ |= bit;
  }

  void on_string(std::string& text) override {
    if (state_ == State::metadata) {
      if (!header_->metadata.emplace(key_, std::move(text)).second) refuse("each key once", "a duplicate");
    } else if (state_ == State::entry && field_ == Field::dtype) {
      if (safetensors_dtype_bits(text) == 0) refuse("a known dtype", fmt::format("\"{}\"", printable(text)));
      entry().dtype = std::move(text);
    } else {
      refuse(expected(), "a string");
    }
  }

  void on_integer(int64_t value) override {
    if (state_ != State::shape && state_ != State::offsets) refuse(expected(), "an integer");
    if (value < 0) refuse("a number of at least 0", fmt::format("{}", value));
    if (state_ == State::shape) {
      if (entry().shape.size() == kRankLimit) refuse(fmt::format("at most {} dimensions", kRankLimit), "more");
      entry().shape.push_back(value);
    } else {
      if (++offset_count_ > 2) refuse("two data_offsets", "more");
      (offset_count_ == 1 ? entry().begin : entry().end) = value;
    }
  }

  void on_other(const char* kind) override { refuse(expected(), kind); }

 private:
  enum class State { start, top, entry, shape, offsets, metadata };
  enum class Field { dtype, shape, offsets };

  SafetensorsEntry& entry() { return header_->entries.back(); }

  std::string expected() const {
    switch (state_) {
      case State::start:
      case State::top: return "an object";
      case State::metadata: return "a string";
      case State::shape:
      case State::offsets: return "an integer below 2^63";
      case State::entry: return field_ == Field::dtype ? "a string" : "an array";
    }
    return {};
  }

  [[noreturn]] void refuse(const std::string& wanted, const std::string& got) const {
    static constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};
    const bool inside = state_ == State::entry || state_ == State::shape || state_ == State::offsets;
    fail(Exit::data,
         fmt::format("{}: header, {}key \"{}\"{}{}: expected {}, got {}", path_,
                     state_ == State::metadata ? "__metadata__, " : "", printable(key_), inside ? ", " : "",
                     inside ? kFields[static_cast<int>(field_)] : "", wanted, got),
         kFileHint);
  }

  std::string_view path_;
  SafetensorsHeader* header_;
  State state_ = State::start;
  Field field_ = Field::dtype;
  std::string key_;
  unsigned fields_seen_ = 0;
  int offset_count_ = 0;
  bool metadata_seen_ = false;
};

// Sizes agree with dtype and shape, and the tensors tile the buffer.
void check_layout(const std::vector<SafetensorsEntry>& entries, int64_t buffer_size, std::string_view path) {
  std::vector<const SafetensorsEntry*> order;
  order.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    const auto refuse = [&](const std::string& what) {
      fail(Exit::data, fmt::format("{}: tensor \"{}\": {}", path, printable(entry.name), what), kFileHint);
    };
    if (entry.begin > entry.end || entry.end > buffer_size) {
      refuse(fmt::format("expected data_offsets within [0, {}], got [{}, {}]", buffer_size, entry.begin, entry.end));
    }
    const int64_t bytes = safetensors_bytes(entry.dtype, entry.shape);
    if (bytes < 0) refuse("the size of its shape exceeds 2^63 bytes, or is not a whole number of bytes");
    if (bytes != entry.end - entry.begin) {
      refuse(fmt::format("expected {} bytes for its dtype {} and shape, got data_offsets [{}, {}]: {} bytes", bytes,
                         entry.dtype, entry.begin, entry.end, entry.end - entry.begin));
    }
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  int64_t covered = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin != covered) {
      fail(Exit::data,
           fmt::format("{}: tensor \"{}\": expected it to begin at byte {} of the buffer, got {}: {}", path,
                       printable(entry->name), covered, entry->begin,
                       entry->begin < covered ? "tensors overlap" : "bytes belong to no tensor"),
           kFileHint);
    }
    covered = entry->end;
  }
  if (covered != buffer_size) {
    fail(Exit::data, fmt::format("{}: expected a buffer of {} bytes, got {}", path, covered, buffer_size), kFileHint);
  }
}

}  // namespace

int64_t SafetensorsEntry::element_count() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t safetensors_dtype_bits(std::string_view dtype) {
  for (const auto& [name, bits] : kDtypes) {
    if (name == dtype) return bits;
  }
  return 0;
}

int64_t safetensors_bytes(std::string_view dtype, const std::vector<int64_t>& shape) {
  int64_t bits = safetensors_dtype_bits(dtype);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return -1;
  }
  return bits % 8 == 0 ? bits / 8 : -1;
}

std::string_view safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
    case DType::u16: return "U16";
  }
  MW_CHECK(false, "no safetensors name for dtype {}", static_cast<int>(dtype));
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_bytes, std::string_view path_for_messages) {
  const std::string_view path = path_for_messages;
  uint64_t length = 0;
  if (file_bytes.size() < sizeof length) {
    fail(Exit::data, fmt::format("{}: expected at least 8 bytes, got {}", path, file_bytes.size()), kFileHint);
  }
  std::memcpy(&length, file_bytes.data(), sizeof length);
  const size_t rest = file_bytes.size() - sizeof length;
  if (length > static_cast<uint64_t>(kSafetensorsHeaderLimit)) {
    fail(Exit::data,
         fmt::format("{}: expected a header of at most {} bytes, got {}", path, kSafetensorsHeaderLimit, length),
         kFileHint);
  }
  if (length > rest) {
    fail(Exit::data, fmt::format("{}: expected a header of {} bytes, got {} left in the file", path, length, rest),
         kFileHint);
  }
  const std::string_view text(reinterpret_cast<const char*>(file_bytes.data()) + sizeof length, length);
  if (text.empty() || text.front() != '{') {
    fail(Exit::data,
         fmt::format("{}: expected a header that begins with '{{', got \"{}\"", path, printable(text.substr(0, 8))),
         kFileHint);
  }

  SafetensorsHeader header;
  HeaderReader reader(path, &header);
  parse_json_events(text, path, 4, reader);
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(header.entries.begin(), header.entries.end(),
                                       [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twin != header.entries.end()) {
    fail(Exit::data, fmt::format("{}: duplicate tensor \"{}\" in the header", path, printable(twin->name)), kFileHint);
  }
  check_layout(header.entries, static_cast<int64_t>(rest - length), path);
  header.buffer_offset = static_cast<int64_t>(sizeof length + length);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at =
      std::lower_bound(header_.entries.begin(), header_.entries.end(), name,
                       [](const SafetensorsEntry& entry, std::string_view key) { return entry.name < key; });
  return at != header_.entries.end() && at->name == name ? &*at : nullptr;
}

std::span<const std::byte> SafetensorsFile::data(const SafetensorsEntry& entry) const {
  const auto buffer = file_.bytes().subspan(static_cast<size_t>(header_.buffer_offset));
  MW_CHECK(entry.begin >= 0 && entry.begin <= entry.end && static_cast<size_t>(entry.end) <= buffer.size(),
           "{}: tensor \"{}\" is not of this file", path(), entry.name);
  return buffer.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
}

}  // namespace mw
