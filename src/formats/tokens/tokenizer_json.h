// The contents of a Hugging Face tokenizer.json with a byte-level BPE model, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tokens/added_tokens.h"
#include "formats/tokens/normalize.h"

namespace mw {

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// A pre-tokenizer: splits the text into pieces before they are encoded.
struct SplitRule {
  std::string pattern;
  bool literal = false;  // plain text, not a regular expression
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the text between matches counts as the match
};

struct TokenizerJson {
  std::vector<AddedToken> added;
  std::vector<Normalization> normalizers;                   // in order
  std::vector<SplitRule> splits;                            // in order
  bool prefix_space = false;                                // after the splits: prepend a space to pieces without one
  bool byte_level_split = false;                            // after the splits: also split by kByteLevelPattern
  bool ignore_merges = false;                               // a word that is itself a token is not built by merges
  std::vector<std::pair<std::string, int32_t>> vocab;       // names as in the file, and ids
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

// GPT-2's pattern for words.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Parses a tokenizer.json. Ids must be unique and in [0, 2^24). Parts that only concern prompts are ignored:
// post_processor, and the offsets that the decoder would trim. Errors: Exit::data naming `where` and the field when
// something is missing or has the wrong type; Exit::unsupported naming a feature that is not implemented.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace mw
