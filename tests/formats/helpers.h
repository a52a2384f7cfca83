// Shared by the tests of this room: scratch folders, raw files, and the error that a call must give.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace mw::test {

// A code point below 0x800.
inline std::string utf8(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

// The character that stands for a byte in byte-level BPE, as in GPT-2's code.
inline uint32_t byte_level_character(uint8_t byte) {
  const auto is_printable = [](uint32_t b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad); };
  if (is_printable(byte)) return byte;
  uint32_t character = 0x100;
  for (uint32_t b = 0; b < byte; ++b) character += is_printable(b) ? 0 : 1;
  return character;
}

// A folder of its own, removed at the end.
class ScratchDir {
 public:
  ScratchDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "mw_formats_XXXXXX").native();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
    path_ = pattern;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_raw(const std::string& path, std::string_view bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_raw(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Overwrites the bytes of `value` at `offset`.
template <class T>
std::string with_value(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

inline std::span<const std::byte> as_span(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The message of the Error that `work` must throw with the exit code `expected`; "" and a test failure otherwise.
template <class Work>
std::string error_of(Work work, Exit expected = Exit::data) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(expected)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace mw::test
