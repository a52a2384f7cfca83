// Text generation: one token at a time, each from a full forward pass over the context (there is no key/value cache).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "formats/tokens/tokenizer.h"

namespace mw {

// The reason why this layout cannot generate, or "".
std::string why_no_sample(const RunSpec& run);

// The tokenizer of a run: sample.tokenizer, or the tokenizer in the Hugging Face folder of the model, or bytes
// (data.kind = "text", or a vocabulary of up to 256). Errors: config, when there is none, or it has more tokens than
// the model; otherwise as open_tokenizer.
std::unique_ptr<Tokenizer> open_run_tokenizer(const RunSpec& run, const ModelSpec& model);

struct GeneratedText {
  int64_t tokens = 0;
  bool ended = false;  // whether generation stopped at the end-of-document token, which is not part of the text
};

// Continues spec.prompt by up to spec.tokens tokens; the context is the last train.seq_len tokens. tokenizer: null on
// all ranks but rank 0; `show` is only called on rank 0, with each piece of text after the prompt as it is generated,
// in whole UTF-8 characters. Collective over the world. Errors: config, data, when the prompt cannot be encoded.
GeneratedText generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                       const std::function<void(std::string_view)>& show);

}  // namespace mw
