// What a Hugging Face tokenizer.json of a byte-level BPE tokenizer says, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/added_tokens.h"
#include "formats/normalize.h"

namespace mw {

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// A cut of the text before the words are encoded.
struct SplitRule {
  std::string pattern;
  bool literal = false;  // plain text, not a regular expression
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what does not match counts as the match
};

struct TokenizerJson {
  std::vector<AddedToken> added;
  std::vector<Normalization> normalizers;                   // in order
  std::vector<SplitRule> splits;                            // in order
  bool prefix_space = false;                                // then a piece that does not begin with a space gets one
  bool byte_level_split = false;                            // and is cut by kByteLevelPattern
  bool ignore_merges = false;                               // a word that is a token is not merged
  std::vector<std::pair<std::string, int32_t>> vocab;       // names as they stand in the file, and ids
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

// GPT-2's cut into words.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Ids lie in [0, 2^24) and are given once. What only concerns prompts is passed over: post_processor, and the offsets
// that the decoder would trim. Errors: Exit::data naming `where` and the field when something is missing or has the
// wrong type; Exit::unsupported naming what is not built.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace mw
