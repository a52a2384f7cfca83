#include "formats/tokens/token_shard.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "layout/shards.h"

namespace mw {
namespace {

constexpr const char* kShardHint =
    "check that the path names a complete token shard in the format of llm.c, or tokenize the text again";

struct Variant {
  int32_t magic, version;
  TokenType type;
};
constexpr Variant kVariants[] = {{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::u32}};

std::vector<std::string> match_pattern(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// Of tokens [first, first + count), as many in memory at a time as a piece has.
std::vector<int64_t> positions_of(int64_t token, const TokenSource& source, int64_t first, int64_t count) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;
  for (const int64_t end = first + count; first < end; first += kPiece) {
    tokens.resize(static_cast<size_t>(std::min(kPiece, end - first)));
    source.read(first, tokens);
    for (auto at = tokens.begin(); (at = std::find(at, tokens.end(), token)) != tokens.end(); ++at)
      positions.push_back(first + (at - tokens.begin()));
  }
  return positions;
}

}  // namespace

TokenShardHeader parse_token_shard(std::span<const std::byte> file_bytes, std::string_view path_for_messages) {
  const std::string_view path = path_for_messages;
  if (file_bytes.size() < kTokenShardHeaderSize) {
    fail(Exit::data, fmt::format("{}: expected a header of 1024 bytes, got a file of {}", path, file_bytes.size()),
         kShardHint);
  }
  std::array<int32_t, 3> header;
  std::memcpy(header.data(), file_bytes.data(), sizeof header);
  const auto [magic, version, count] = header;
  const auto variant =
      std::find_if(std::begin(kVariants), std::end(kVariants), [m = magic](const Variant& v) { return v.magic == m; });
  if (variant == std::end(kVariants)) {
    const char* known = magic == 20240522 ? " (an evaluation file)" : magic == 20240527 ? " (a state file)" : "";
    fail(Exit::data, fmt::format("{}: magic: expected 20240520 or 20240801, got {}{}", path, magic, known), kShardHint);
  }
  if (version != variant->version) {
    fail(Exit::data, fmt::format("{}: version: expected {}, got {}", path, variant->version, version), kShardHint);
  }
  if (count < 0) fail(Exit::data, fmt::format("{}: token count: expected 0 or more, got {}", path, count), kShardHint);
  const int64_t expected = kTokenShardHeaderSize + count * size_of(variant->type);
  if (static_cast<int64_t>(file_bytes.size()) != expected) {
    fail(Exit::data,
         fmt::format("{}: expected {} bytes for {} {} tokens, got {}", path, expected, count, name_of(variant->type),
                     file_bytes.size()),
         kShardHint);
  }
  return {.type = variant->type, .token_count = count};
}

TokenShard::TokenShard(const std::string& path) : file_(path), header_(parse_token_shard(file_.bytes(), path)) {}

void TokenShard::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  if (out.empty()) return;
  decode_tokens(header_.type, file_.bytes().data() + kTokenShardHeaderSize + first * size_of(header_.type), out,
                fmt::format("{}, from token {}", file_.path(), first));
}

std::string TokenShard::describe() const {
  return fmt::format("shard {}: {} {} tokens", file_.path(), format_count(static_cast<double>(size())),
                     name_of(header_.type));
}

JoinedShards::JoinedShards(std::vector<std::string> paths, const OpeningRanks& ranks, size_t most_mapped)
    : paths_(std::move(paths)), starts_{0}, most_mapped_(most_mapped) {
  std::vector<int64_t> sizes(paths_.size());
  const Block own = block_of(std::ssize(paths_), ranks.size(), ranks.rank());
  ranks.agree([&] {
    for (int64_t i = own.begin; i < own.begin + own.count; ++i) {
      ranks.note_progress();
      sizes[static_cast<size_t>(i)] = TokenShard(paths_[static_cast<size_t>(i)]).size();
    }
  });
  ranks.sum(sizes);
  for (const int64_t size : sizes) starts_.push_back(starts_.back() + size);
}

std::shared_ptr<const TokenShard> JoinedShards::shard(size_t i) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = mapped_.find(i); known != mapped_.end()) return known->second;
  auto mapped = std::make_shared<const TokenShard>(paths_[i]);
  if (mapped->size() != size_of_shard(i))
    fail(Exit::data,
         fmt::format("{}: expected {} tokens, as when the data was opened, got {}", paths_[i], size_of_shard(i),
                     mapped->size()),
         "leave the files of a run as they are while it reads them");
  if (mapped_.size() >= most_mapped_) mapped_.clear();  // who reads one of them keeps it until then
  return mapped_[i] = std::move(mapped);
}

size_t JoinedShards::shard_of(int64_t token) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin()) - 1;
}

void JoinedShards::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  if (out.empty()) return;
  for (size_t i = shard_of(first); !out.empty(); ++i) {
    const int64_t within = first - starts_[i];
    const int64_t count = std::min<int64_t>(size_of_shard(i) - within, std::ssize(out));
    if (count == 0) continue;  // an empty shard
    shard(i)->read(within, out.first(static_cast<size_t>(count)));
    out = out.subspan(static_cast<size_t>(count));
    first += count;
  }
}

void JoinedShards::cut_documents(int64_t token) {
  if (size() == 0) return;
  const auto first_full = std::upper_bound(starts_.begin(), starts_.end(), 0) - 1;
  const std::shared_ptr<const TokenShard> full = shard(static_cast<size_t>(first_full - starts_.begin()));
  document_token_ = token >= 0 ? token : full->type() == TokenType::u16 ? 50256 : 128000;
  constexpr int64_t kPiece = int64_t{1} << 20;
  for (int64_t first = 0; first < full->size(); first += kPiece)
    if (!positions_of(document_token_, *full, first, std::min(kPiece, full->size() - first)).empty()) return;
  fail(Exit::config,
       fmt::format("{}: expected documents that begin with token {}, got none", full->describe(), document_token_),
       "set data.document_token to the token that begins each document, or data.document_mask and data.whole_documents "
       "to false");
}

std::vector<int64_t> JoinedShards::document_begins(int64_t first, int64_t count) const {
  if (document_token_ < 0) return TokenSource::document_begins(first, count);
  check_range(first, static_cast<size_t>(count));
  return positions_of(document_token_, *this, first, count);
}

std::string JoinedShards::place_of(int64_t i) const {
  const size_t shard = shard_of(i);
  return fmt::format("{}: token {}", paths_[shard], i - starts_[shard]);
}

std::string JoinedShards::describe() const {
  const std::string cut = document_token_ < 0 ? "" : fmt::format(", token {} begins a document", document_token_);
  return fmt::format("{} shards: {} tokens{}", paths_.size(), format_count(static_cast<double>(size())), cut);
}

std::vector<std::string> list_token_shards(const std::string& path) {
  std::error_code ignored;
  std::vector<std::string> paths;
  if (std::filesystem::is_directory(path, ignored)) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      if (at->path().native().ends_with(".bin") && at->is_regular_file(ignored)) paths.push_back(at->path().native());
    }
    if (error)
      fail(Exit::data, fmt::format("cannot list {}: {}", path, error.message()), "check the permissions of the folder");
  } else if (std::filesystem::exists(path, ignored)) {
    paths = {path};
  } else {
    paths = match_pattern(path);
  }
  if (paths.empty()) {
    fail(Exit::data, fmt::format("{}: no token shard found", path),
         "set data.path to a .bin file, a folder of .bin files, or a pattern such as \"data/train_*.bin\"");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> list_token_shards(const std::string& path, const OpeningRanks& ranks) {
  std::string names;  // each with a zero byte behind it, which no name contains
  ranks.agree([&] {
    if (ranks.rank() > 0) return;
    for (const std::string& name : list_token_shards(path)) names += name + '\0';
  });
  names = ranks.broadcast(names);
  std::vector<std::string> paths;
  for (size_t begin = 0; begin < names.size(); begin += paths.back().size() + 1)
    paths.push_back(names.substr(begin, names.find('\0', begin) - begin));
  return paths;
}

}  // namespace mw
