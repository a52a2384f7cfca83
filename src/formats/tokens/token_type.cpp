#include "formats/tokens/token_type.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"

namespace mw {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

// Calls work with a value of the C++ type that stores `type`.
template <class Work>
auto with_type(TokenType type, Work work) {
  switch (type) {
    case TokenType::u8: return work(uint8_t{});
    case TokenType::i8: return work(int8_t{});
    case TokenType::i16: return work(int16_t{});
    case TokenType::i32: return work(int32_t{});
    case TokenType::i64: return work(int64_t{});
    case TokenType::u16: return work(uint16_t{});
    case TokenType::u32: return work(uint32_t{});
  }
  MW_CHECK(false, "unknown token type {}", static_cast<int>(type));
}

}  // namespace

int64_t size_of(TokenType type) {
  return with_type(type, [](auto value) { return static_cast<int64_t>(sizeof value); });
}

std::string_view name_of(TokenType type) {
  static constexpr std::string_view kNames[] = {"u8", "i8", "i16", "i32", "i64", "u16", "u32"};
  return kNames[static_cast<int>(type)];
}

void decode_tokens(TokenType type, const std::byte* from, std::span<int32_t> out, std::string_view where) {
  with_type(type, [&](auto value) {
    for (size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      if (!std::in_range<int32_t>(value)) {
        fail(Exit::data, fmt::format("{}: token {}: expected an id below 2^31, got {}", where, i, value),
             "the file is damaged or has another format: check the path, or tokenize the text again");
      }
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8_t are numbers here
      out[i] = static_cast<int32_t>(value);
    }
  });
}

void encode_tokens(TokenType type, std::span<const int32_t> tokens, std::byte* to, std::string_view where) {
  with_type(type, [&](auto value) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!std::in_range<decltype(value)>(tokens[i])) {
        fail(Exit::data,
             fmt::format("{}: token {}: id {} does not fit the type {}", where, i, tokens[i], name_of(type)),
             "write the tokens as i32 or u32");
      }
      value = static_cast<decltype(value)>(tokens[i]);
      std::memcpy(to + i * sizeof value, &value, sizeof value);
    }
  });
}

}  // namespace mw
