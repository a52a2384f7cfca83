// Small token files for tests.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/io/output_file.h"
#include "formats/tokens/megatron.h"

namespace mw::test {

inline std::vector<std::byte> encoded(TokenType type, std::span<const int32_t> tokens, const std::string& path) {
  std::vector<std::byte> bytes(tokens.size() * static_cast<size_t>(size_of(type)));
  encode_tokens(type, tokens, bytes.data(), path);
  return bytes;
}

// Writes prefix.bin and prefix.idx. documents: their bounds among the sequences, 0 first; empty: a document for each
// sequence. Errors: those of encode_tokens and append_megatron_index; neither file is there then.
inline void write_megatron(const std::string& prefix, const std::vector<std::vector<int32_t>>& sequences,
                           TokenType type = TokenType::i32, std::vector<int64_t> documents = {}) {
  const bool each = documents.empty();
  if (each) documents.push_back(0);
  OutputFile bin(prefix + ".bin"), idx(prefix + ".idx");
  std::vector<int32_t> lengths;
  for (const std::vector<int32_t>& sequence : sequences) {
    bin.append(encoded(type, sequence, prefix));
    lengths.push_back(static_cast<int32_t>(sequence.size()));
    if (each) documents.push_back(std::ssize(lengths));
  }
  append_megatron_index(idx, type, lengths, documents);
  bin.finish();
  idx.finish();
}

// Writes a shard of llm.c with ids of 16 or 32 bits. Errors: those of encode_tokens.
inline void write_token_shard(const std::string& path, std::span<const int32_t> tokens,
                              TokenType type = TokenType::u16) {
  std::array<int32_t, 256> header{};
  header[0] = type == TokenType::u16 ? 20240520 : 20240801;
  header[1] = type == TokenType::u16 ? 1 : 7;
  header[2] = static_cast<int32_t>(tokens.size());
  OutputFile file(path);
  file.append(std::as_bytes(std::span(header)));
  file.append(encoded(type, tokens, path));
  file.finish();
}

}  // namespace mw::test
