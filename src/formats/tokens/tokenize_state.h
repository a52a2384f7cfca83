// `prefix.tokenize.json`: the progress of an interrupted tokenization. docs/formats.md lists the fields.
#pragma once

#include <string>
#include <vector>

#include "formats/tokens/document_reader.h"
#include "formats/tokens/growing_dataset.h"

namespace mw {

// The settings that must be equal for a run to resume from another run's files.
struct TokenizeSettings {
  std::string tokenizer_xxh3, key, chat;
  int64_t end_of_document = -1;  // -1: none
  std::string token_type;
  struct Input {
    std::string path;
    int64_t size = 0, modified_ns = 0;
  };
  std::vector<Input> inputs;
};

struct TokenizeState {
  DocumentPlace place;
  DatasetMark mark;
  int64_t consumed = 0;        // bytes of the input files
  int64_t replaced_bytes = 0;  // that were not UTF-8
  int64_t in_loss = 0;         // tokens that count in the loss; -1: not known, where an older version began
};

// Sizes and modification times of the files. Errors: Exit::data.
std::vector<TokenizeSettings::Input> describe_inputs(const std::vector<std::string>& files);

void write_tokenize_state(const std::string& path, const TokenizeSettings& settings, const TokenizeState& state);

// Reads the state. Errors: Exit::data when the file is damaged, or a setting differs; names the first such setting.
TokenizeState read_tokenize_state(const std::string& path, const TokenizeSettings& settings);

}  // namespace mw
