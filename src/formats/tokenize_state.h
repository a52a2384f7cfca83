// `prefix.tokenize.json`: how far an interrupted tokenization is. docs/formats.md lists the fields.
#pragma once

#include <string>
#include <vector>

#include "formats/document_reader.h"
#include "formats/growing_dataset.h"

namespace mw {

// What has to be the same for a run to go on from another's files.
struct TokenizeSettings {
  std::string tokenizer_xxh3, key;
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
  int64_t consumed = 0;  // bytes of the input files
};

// Sizes and times of the files. Errors: Exit::data.
std::vector<TokenizeSettings::Input> describe_inputs(const std::vector<std::string>& files);

void write_tokenize_state(const std::string& path, const TokenizeSettings& settings, const TokenizeState& state);

// Errors: Exit::data when the file is damaged, or names the first setting that differs.
TokenizeState read_tokenize_state(const std::string& path, const TokenizeSettings& settings);

}  // namespace mw
