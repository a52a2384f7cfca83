// Token sources: a stream of token ids, independent of the file format that it is read from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/choices.h"
#include "formats/tokens/opening_ranks.h"

namespace mw {

// A read-only stream of token ids. Reading is const and safe from many threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;  // tokens
  // Fills `out` with tokens [first, first + out.size()). Errors: Exit::internal when out of range; Exit::data naming
  // file and position when a stored id does not fit 32 bits. Ids may be negative or beyond the vocabulary: see
  // check_tokens.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // The positions where documents begin within tokens [first, first + count), ascending. Errors: as read; config where
  // the source has no documents.
  virtual std::vector<int64_t> document_begins(int64_t first, int64_t count) const;
  // For tokens [first, first + out.size()): 1 where predicting the token counts in the loss, else 0. Returns false, and
  // leaves `out` as it is, where the source has no mask: all tokens count. Errors: as read.
  virtual bool read_loss_mask(int64_t first, std::span<uint8_t> out) const;
  // Where token `i` is, for messages: file and position in it.
  virtual std::string place_of(int64_t i) const;
  virtual std::string describe() const = 0;  // one line for the log: "megatron data/web: 1.20B tokens, 31204 documents"

 protected:
  // Throws Exit::internal unless [first, first + count) lies within the source.
  void check_range(int64_t first, size_t count) const;
};

// For each token of [first, first + starts.size()): the beginning of its document relative to `first`, or 0 where that
// is before `first`. Errors: as document_begins.
void find_document_starts(const TokenSource& source, int64_t first, std::span<int32_t> starts);

// Checks that all ids are in [0, vocab). Errors: Exit::data naming `where`, the vocabulary size, and the first id that
// is not, with its index in the stream (`first` + i).
void check_tokens(std::span<const int32_t> tokens, int64_t vocab, std::string_view where, int64_t first = 0);
// The same for tokens of `source` from `first` on; names the token as place_of does.
void check_tokens(std::span<const int32_t> tokens, int64_t vocab, const TokenSource& source, int64_t first);

struct TokenRange {
  int32_t smallest = 0, largest = 0;
};
// Reads the whole source; {0, 0} when it is empty.
TokenRange find_token_range(const TokenSource& source);

// A contiguous range of another source.
class TokenSlice final : public TokenSource {
 public:
  TokenSlice(std::unique_ptr<TokenSource> source, int64_t first, int64_t count);
  int64_t size() const override { return count_; }
  void read(int64_t first, std::span<int32_t> out) const override;
  std::vector<int64_t> document_begins(int64_t first, int64_t count) const override;
  bool read_loss_mask(int64_t first, std::span<uint8_t> out) const override;
  std::string place_of(int64_t i) const override;
  std::string describe() const override;

 private:
  std::unique_ptr<TokenSource> source_;
  int64_t first_, count_;
};

enum class Split { all, train, validation };

struct TokenSourceOptions {
  DataKind kind = DataKind::text;
  std::string path;                   // see TextCorpus, MegatronDataset, list_token_shards
  std::vector<std::string> suffixes;  // text only
  double validation_fraction = 0;     // in [0, 1): share of the files (text), or of the tokens, taken from the end
  Split split = Split::all;
  bool documents = false;       // document_begins will be called
  int64_t document_token = -1;  // shards: begins each document; -1: 50256 (GPT-2) in u16 files, 128000 (Llama 3) in u32
};

// Opens a source with at least one token. Errors: Exit::config on a fraction outside [0, 1), a validation split of
// fraction 0, or, when `documents` is set, shards whose first file contains no beginning of a document; Exit::data for
// all errors about the files. What needs a look at every file or document is shared by `ranks`, but for text, which
// each rank reads.
std::unique_ptr<TokenSource> open_token_source(const TokenSourceOptions& options, const OpeningRanks& ranks = {});

}  // namespace mw
