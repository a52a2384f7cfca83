// Tokenizes text files into a Megatron dataset: many threads encode, one writes. A killed run can be resumed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mw {

struct TokenizeProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files as stored (compressed or not)
  int64_t resumed_bytes = 0;           // the part of `bytes` done by earlier runs
  int64_t documents = 0, tokens = 0;   // in the dataset
  int64_t in_loss = 0;                 // of the dataset, with a chat template: tokens that count; -1: not known
  int64_t replaced_bytes = 0;          // of the inputs: bytes that were not UTF-8
};

struct TokenizeJob {
  std::string tokenizer;            // see open_tokenizer
  std::vector<std::string> inputs;  // files and folders, see DocumentReader
  std::string prefix;               // of .bin and .idx; beside them `prefix.tokenize.json` holds a run's progress, and
                                    // `prefix.tokenize.lock` that it is at work
  std::string key;                  // the field of a JSON line; empty: "text", or "messages" with `chat`
  std::string chat;                 // a chat template (formats/tokens/chat.h); empty: the field holds plain text
  // A token; "none"; empty: the tokenizer's own, or none where the chat template ends each message.
  std::string end_of_document;
  int threads = 1;
  int64_t read_ahead = int64_t{256} << 20;  // most bytes of text queued or being encoded (one block may exceed it)
  bool restart = false;                     // discard an interrupted run
  double save_seconds = 30;                 // between saves from which a killed run can resume
  std::function<void(const TokenizeProgress&)> report;  // called after every block written
  std::function<void(const std::string&)> warn;         // called with warnings that do not stop the run; may be empty
};

struct TokenizeResult {
  TokenizeProgress progress;
  std::string tokenizer;   // Tokenizer::describe()
  std::string token_type;  // "u16" for vocabularies below 65500, as with Megatron, else "i32"
};

// With `chat` also writes prefix.mask, the loss mask. The dataset is bit-identical for any number of threads and
// interruptions. Errors: Exit::data for tokenizer and inputs, also when they hold no document; when an interrupted run
// had other settings or inputs, another run is writing the dataset, or it already exists; Exit::usage when there is no
// token that ends documents.
TokenizeResult tokenize(const TokenizeJob& job);

}  // namespace mw
