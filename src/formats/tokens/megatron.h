// Megatron indexed datasets: `X.bin` holds the token ids of all sequences, `X.idx` their lengths and positions.
//
// .idx, little-endian and unaligned: "MMIDIDX\0\0" | u64 version 1 | u8 dtype code | u64 S sequences | u64 N document
// entries | i32[S] lengths in tokens | i64[S] byte offsets in .bin | i64[N] document bounds, 0 first and S last | i8[S]
// modes, in multimodal files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/io/output_file.h"
#include "formats/tokens/opening_ranks.h"
#include "formats/tokens/token_file.h"
#include "formats/tokens/token_type.h"

namespace mw {

// A validated .idx. The spans point into the bytes that it was parsed from.
struct MegatronIndex {
  TokenType type = TokenType::i32;
  int64_t sequence_count = 0;
  int64_t document_count = 0;
  int64_t token_count = 0;
  std::span<const std::byte> lengths;    // i32[sequence_count]
  std::span<const std::byte> offsets;    // i64[sequence_count], bytes
  std::span<const std::byte> documents;  // i64[document_count + 1]
  // Stream position of each sequence; empty when the sequences lie in .bin without gaps, the usual case.
  std::vector<int64_t> starts;

  int64_t length(int64_t sequence) const;  // tokens
  int64_t offset(int64_t sequence) const;  // bytes
  int64_t document_begin(
      int64_t document) const;  // first sequence of a document; document_count is legal and gives the end
  int64_t first_token(
      int64_t document) const;  // position in the token stream; document_count is legal and gives the end
};

// Parses and validates an .idx. Errors: Exit::data naming `path_for_messages`, the field, the expected value and the
// actual one. Sequences must be in order, may have gaps between them, must not overlap, and must end where .bin
// (bin_size bytes) ends. Each of `ranks` checks a part of the sequences and documents; where there are gaps, each also
// reads the lengths of all.
MegatronIndex parse_megatron_index(std::span<const std::byte> idx, int64_t bin_size, std::string_view path_for_messages,
                                   const OpeningRanks& ranks = {});

// Reads tokens [first, first + out.size()) of the concatenated sequences. `bin` must have the size that the index was
// checked with.
void read_megatron_tokens(const MegatronIndex& index, std::span<const std::byte> bin, int64_t first,
                          std::span<int32_t> out, std::string_view path_for_messages);

// `X` of `X`, `X.bin` and `X.idx`.
std::string megatron_prefix(const std::string& path);

// The sequences of a dataset in file order, joined into one stream. Where there is a file X.mask, it holds one byte for
// each token of the stream: 1 where the token counts in the loss, else 0.
class MegatronDataset final : public TokenSource {
 public:
  // `X`, `X.bin` or `X.idx`. The ranks share the check of the index. Errors: Exit::data.
  explicit MegatronDataset(const std::string& prefix_or_path, const OpeningRanks& ranks = {});
  int64_t size() const override { return index_.token_count; }
  void read(int64_t first, std::span<int32_t> out) const override;
  // Documents as recorded in the index, independent of the token ids.
  std::vector<int64_t> document_begins(int64_t first, int64_t count) const override;
  bool read_loss_mask(int64_t first, std::span<uint8_t> out) const override;
  std::string describe() const override;
  const MegatronIndex& index() const { return index_; }

 private:
  std::string prefix_;
  MappedFile idx_, bin_;
  MegatronIndex index_;
  std::optional<MappedFile> mask_;
};

// Writes a complete .idx for sequences that lie in .bin without gaps. `documents` are the bounds, 0 first. Errors:
// Exit::data on a type that the format does not have, or on a failed write.
void append_megatron_index(OutputFile& idx, TokenType type, std::span<const int32_t> lengths,
                           std::span<const int64_t> documents);

}  // namespace mw
