// A Megatron dataset that is written over several runs: saved data survives a kill, and the next run continues from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/io/checksum.h"
#include "formats/io/output_file.h"
#include "formats/tokens/token_type.h"

namespace mw {

// A point from which writing can continue.
struct DatasetMark {
  int64_t documents = 0;
  int64_t bytes = 0;                   // of .bin
  std::string bin_xxh3, lengths_xxh3;  // of the data written so far
  std::string mask_xxh3;               // empty: no loss mask
};

// One sequence per document. Writes `prefix.bin.tmp`, the lengths into `prefix.lengths.tmp`, and with `has_mask` the
// loss mask (formats/tokens/megatron.h) into `prefix.mask.tmp`; they remain when this object is destroyed before
// finish(). Not thread-safe. Errors (all functions): Exit::data.
class GrowingDataset {
 public:
  GrowingDataset(const std::string& prefix, TokenType type, bool has_mask = false);
  // Continues from a mark and cuts off later bytes. Errors also when the existing files do not match the mark.
  GrowingDataset(const std::string& prefix, TokenType type, const DatasetMark& mark);

  // mask: as many values as tokens, or none without a loss mask.
  void add_document(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {});
  DatasetMark save();  // all data so far survives a crash
  // Writes `prefix.idx`, renames the data to `prefix.mask` and `prefix.bin`, and removes the file of lengths.
  void finish();
  // Of a writer that was killed in finish() before the data had its name: removes the index and gives the mask its
  // temporary name again, so that writing can continue from a mark. Nothing otherwise.
  static void take_back_finish(const std::string& prefix);
  int64_t documents() const { return std::ssize(lengths_); }
  int64_t tokens() const { return bin_.appended() / size_of(type_); }

 private:
  std::string prefix_;
  TokenType type_;
  OutputFile bin_, lengths_file_;
  std::optional<OutputFile> mask_;
  Xxh3Stream bin_hash_, lengths_hash_, mask_hash_;
  std::vector<int32_t> lengths_;
  size_t lengths_written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace mw
