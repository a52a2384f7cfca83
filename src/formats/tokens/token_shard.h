// llm.c token shards: a header of 256 i32 (1024 bytes), then the token ids; little-endian.
// Header: [0] magic 20240520, [1] version 1: u16 ids; or magic 20240801, version 7: u32 ids. [2] token count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/tokens/opening_ranks.h"
#include "formats/tokens/token_file.h"
#include "formats/tokens/token_type.h"

namespace mw {

inline constexpr int64_t kTokenShardHeaderSize = 1024;  // bytes

struct TokenShardHeader {
  TokenType type = TokenType::u16;
  int64_t token_count = 0;
};

// Parses and validates a header. Errors: Exit::data naming `path_for_messages`, the field, the expected value and the
// actual one; the file size must be exactly 1024 + count * width.
TokenShardHeader parse_token_shard(std::span<const std::byte> file_bytes, std::string_view path_for_messages);

// One memory-mapped shard; it may be empty.
class TokenShard final : public TokenSource {
 public:
  explicit TokenShard(const std::string& path);
  int64_t size() const override { return header_.token_count; }
  void read(int64_t first, std::span<int32_t> out) const override;
  std::string describe() const override;
  TokenType type() const { return header_.type; }

 private:
  MappedFile file_;
  TokenShardHeader header_;
};

// Shards joined in the order given. A shard is mapped at its first use, and at most `most_mapped` are at a time: the
// system limits memory maps, by default to 65530.
class JoinedShards final : public TokenSource {
 public:
  // The ranks share the look at the headers of all shards. Errors: those of TokenShard, of the first bad one. Later, in
  // reads: data, where a shard has changed or gone.
  explicit JoinedShards(std::vector<std::string> paths, const OpeningRanks& ranks = {}, size_t most_mapped = 16384);
  int64_t size() const override { return starts_.back(); }
  void read(int64_t first, std::span<int32_t> out) const override;
  // Enables document_begins: a document begins at each `token`; -1: at 50256 (GPT-2) where the first shard holds u16,
  // at 128000 (Llama 3) where it holds u32. Errors: Exit::config where the first shard that is not empty contains none.
  void cut_documents(int64_t token = -1);
  std::vector<int64_t> document_begins(int64_t first, int64_t count) const override;
  std::string place_of(int64_t i) const override;
  std::string describe() const override;

 private:
  size_t shard_of(int64_t token) const;
  int64_t size_of_shard(size_t i) const { return starts_[i + 1] - starts_[i]; }
  std::shared_ptr<const TokenShard> shard(size_t i) const;

  std::vector<std::string> paths_;
  std::vector<int64_t> starts_;  // first token of each shard, then the total
  int64_t document_token_ = -1;  // -1: unknown
  size_t most_mapped_;
  mutable std::mutex mutex_;  // of mapped_
  mutable std::map<size_t, std::shared_ptr<const TokenShard>> mapped_;
};

// The shards that `path` names: a file, all `*.bin` of a folder, or a pattern with * ? [ ]; sorted bytewise. Errors:
// Exit::data when nothing matches.
std::vector<std::string> list_token_shards(const std::string& path);
// The same, where one of the ranks looks for all.
std::vector<std::string> list_token_shards(const std::string& path, const OpeningRanks& ranks);

}  // namespace mw
