#include "formats/report/event_file.h"

#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/host.h"
#include "formats/io/crc32.h"

namespace mw {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian and written in place");

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Protobuf: fields with their numbers.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  return out + static_cast<char>(value);
}
std::string integer_field(int number, int64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int number, double value) {
  return varint(static_cast<uint64_t>(number) << 3 | 1) + bytes_of(value);
}
std::string text_field(int number, std::string_view text) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(text.size()) + std::string(text);
}
std::string float_field(int number, float value) {
  return varint(static_cast<uint64_t>(number) << 3 | 5) + bytes_of(value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// An Event message without what it carries.
std::string event(int64_t step) {
  const std::string time = double_field(1, wall_time());
  return step == 0 ? time : time + integer_field(2, step);
}

std::string masked_checksum(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return bytes_of(std::rotr(crc, 15) + 0xa282ead8u);
}

std::string record(const std::string& message) {
  const std::string length = bytes_of(static_cast<uint64_t>(message.size()));
  return length + masked_checksum(length) + message + masked_checksum(message);
}

// A name that no file of the folder has.
AppendFile create_in(const std::string& folder) {
  std::error_code ignored;  // what went wrong shows when the file is opened
  std::filesystem::create_directories(folder, ignored);
  // A folder's files are read in the order of their names: a second apart is not enough for two runs.
  const std::string name = fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder, static_cast<int64_t>(wall_time()),
                                       host_name(), ::getpid());
  std::string path = name;
  for (int i = 1; std::filesystem::exists(path, ignored); ++i) path = fmt::format("{}.{}", name, i);
  return {path, AppendFile::Open::anew,
          "check that the folder of log.tensorboard can be written to and has free space"};
}

}  // namespace

EventFileWriter::EventFileWriter(const std::string& folder, int64_t last_step) : file_(create_in(folder)) {
  file_.append(record(event(0) + text_field(3, "brain.Event:2")));
  // SessionLog START: what stands at this step or later in older files is dropped.
  file_.append(record(event(last_step + 1) + text_field(7, integer_field(1, 1))));
}

void EventFileWriter::write(int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars)
    summary += text_field(1, text_field(1, scalar.tag) + float_field(2, static_cast<float>(scalar.value)));
  file_.append(record(event(step) + text_field(5, summary)));
}

}  // namespace mw
