// A tokenizer for tests, without a file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "formats/helpers.h"
#include "formats/tokens/tokenizer.h"

namespace mw::test {

// Special tokens, with ids in their order from 0 on, and all bytes.
inline std::unique_ptr<Tokenizer> byte_level_tokenizer(const std::vector<std::string_view>& special) {
  nlohmann::json vocab = nlohmann::json::object(), added = nlohmann::json::array();
  for (const std::string_view token : special)
    added.push_back({{"id", added.size()}, {"content", token}, {"special", true}, {"normalized", false}});
  for (size_t b = 0; b < 256; ++b) vocab[utf8(byte_level_character(static_cast<uint8_t>(b)))] = special.size() + b;
  const nlohmann::json json = {{"added_tokens", added},
                               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return parse_bpe_tokenizer(json.dump(), "test", "");
}

}  // namespace mw::test
