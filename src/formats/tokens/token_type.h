// Storage types of token ids, and their conversion to and from 32 bits. Shared by the token file formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mw {

enum class TokenType : uint8_t { u8, i8, i16, i32, i64, u16, u32 };

int64_t size_of(TokenType type);           // bytes
std::string_view name_of(TokenType type);  // "u16"

// Reads out.size() ids from `from` (any alignment). Errors: Exit::data naming `where` and the index within `out` of an
// id that does not fit 32 bits.
void decode_tokens(TokenType type, const std::byte* from, std::span<int32_t> out, std::string_view where);

// Writes tokens.size() * size_of(type) bytes to `to`. Errors: Exit::data naming `where` and the index of an id that
// does not fit the type.
void encode_tokens(TokenType type, std::span<const int32_t> tokens, std::byte* to, std::string_view where);

}  // namespace mw
