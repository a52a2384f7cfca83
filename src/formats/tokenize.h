// Text files into a Megatron dataset: many threads encode, one writes, and a killed run is gone on with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mw {

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files, compressed where they are
  int64_t resumed_bytes = 0;           // of them, what earlier runs did
  int64_t documents = 0, tokens = 0;   // in the dataset
  int64_t replaced_bytes = 0;          // of this run: what was not UTF-8
};

struct TokenizeJob {
  std::string tokenizer;            // see open_tokenizer
  std::vector<std::string> inputs;  // files and folders, see DocumentReader
  std::string prefix;               // of .bin and .idx; beside them `prefix.tokenize.json` tells how far a run is, and
                                    // `prefix.tokenize.lock` that it is at work
  std::string key = "text";         // the field of a JSON line
  std::string end_of_document;      // a token; empty: the tokenizer's own; "none"
  int threads = 1;
  int64_t read_ahead = int64_t{256} << 20;  // bytes of text that wait or are encoded, but for one block of any size
  bool restart = false;                     // forget an interrupted run
  double save_seconds = 30;                 // between marks that a killed run is gone on from
  std::function<void(const TokenizeProgress&)> report;  // after every block that is written
  std::function<void(const std::string&)> warn;         // of what goes on all the same; may be empty
};

struct TokenizeResult {
  TokenizeProgress progress;
  std::string tokenizer;   // described
  std::string token_type;  // "u16" for vocabularies below 65500, as with Megatron, else "i32"
};

// The dataset is the same to the bit for any number of threads and interruptions. Errors: Exit::data for tokenizer and
// inputs; also when an interrupted run had other settings or inputs, another run is at work on the dataset, or it
// exists; Exit::usage when no token ends documents.
TokenizeResult tokenize(const TokenizeJob& job);

}  // namespace mw
