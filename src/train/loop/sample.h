// Text generation: prompts, continued token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "formats/tokens/chat.h"
#include "formats/tokens/tokenizer.h"
#include "train/loop/generation.h"

namespace mw {

// The tokenizer of a run: sample.tokenizer, or the tokenizer in the Hugging Face folder of the model, or bytes
// (a vocabulary of up to 256, or data.kind = "text" and no such folder); null when there is none. Errors: config, when
// it has more tokens than the model; otherwise as open_tokenizer.
std::unique_ptr<Tokenizer> find_run_tokenizer(const RunSpec& run, const ModelSpec& model);
// The same. Errors: also config, when there is none.
std::unique_ptr<Tokenizer> open_run_tokenizer(const RunSpec& run, const ModelSpec& model);

// Draws the tokens of growing texts. What a rank draws from is rank 0's tokenizer and the logits of one rank.
class Sampler {
 public:
  // tokenizer: null on all ranks but rank 0. Both must outlive this object. Collective over the world.
  Sampler(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec);

  // On rank 0: the ids of a text. Errors: data, when it cannot be encoded; config, when the model lacks one of them.
  std::vector<int32_t> encode(const std::string& text) const;
  // The next token of every sequence, the same on all ranks. Collective over the world.
  std::vector<int32_t> next(Generation& generation);
  // The token that ends a document; -1: none.
  int32_t end() const { return tokens_.end; }

 private:
  // What every rank must know of the tokenizer.
  struct TokenIds {
    int32_t drawable = 0;  // ids below it have a text
    int32_t end = -1;
  };

  Engine& engine_;
  Tokenizer* tokenizer_;
  SampleSpec spec_;
  TokenIds tokens_;
  uint64_t draws_ = 0;  // of each sequence so far
};

// Those of rank 0. Collective.
std::vector<int32_t> share_ids(Comm& world, std::vector<int32_t> ids);

struct GeneratedText {
  int64_t tokens = 0;
  bool ended = false;  // whether generation stopped at a token that ends the text and is not part of it
};

// Receives a piece of the text after a prompt, in whole UTF-8 characters, as it is generated.
using ShowText = std::function<void(size_t prompt, std::string_view piece)>;

// Continues each prompt by up to spec.tokens tokens, all of them together; train/loop/generation.h says what an engine
// must be made for and what the context is. Until the longest text fills train.seq_len, a text does not depend on the
// others, except for rounding; then the contexts of all are shortened. A text ends with the end-of-document token.
// form: if not null, each prompt is the user's first turn in a conversation of this template; the text is the
// answer, and also ends with the template's tokens. Alike on all ranks. tokenizer: null on all ranks but
// rank 0; `show` is only called on rank 0. Collective over the world. Errors: config; data, when a prompt cannot be
// encoded; as ChatTurns.
std::vector<GeneratedText> generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                                    const std::vector<std::string>& prompts, const ShowText& show,
                                    const ChatTemplate* form = nullptr);

}  // namespace mw
