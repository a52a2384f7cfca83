// A Megatron dataset that is written over several runs: what was saved survives a kill, and the next run goes on there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/checksum.h"
#include "formats/output_file.h"
#include "formats/token_type.h"

namespace mw {

// How far a dataset has come.
struct DatasetMark {
  int64_t documents = 0;
  int64_t bytes = 0;                   // of .bin
  std::string bin_xxh3, lengths_xxh3;  // of what is written so far
};

// One sequence per document. Writes `prefix.bin.tmp`, and the lengths beside it into `prefix.lengths.tmp`; both stay
// when this is destroyed before finish(). For one thread. Errors (all functions): Exit::data.
class GrowingDataset {
 public:
  GrowingDataset(const std::string& prefix, TokenType type);
  // Goes on from a mark: later bytes are cut off. Errors also when what is there is not what the mark says.
  GrowingDataset(const std::string& prefix, TokenType type, const DatasetMark& mark);

  void add_document(std::span<const int32_t> tokens);
  DatasetMark save();  // everything so far survives a crash
  // Makes `prefix.bin` and `prefix.idx` appear, and removes the lengths.
  void finish();
  int64_t documents() const { return std::ssize(lengths_); }
  int64_t tokens() const { return bin_.appended() / size_of(type_); }

 private:
  std::string prefix_;
  TokenType type_;
  OutputFile bin_, lengths_file_;
  Xxh3Stream bin_hash_, lengths_hash_;
  std::vector<int32_t> lengths_;
  size_t lengths_written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace mw
