// Text from a model: one token after another, each from a full forward pass over the context (there is no key/value
// cache).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "formats/tokenizer.h"
#include "train/engine.h"

namespace mw {

// "" or why this layout cannot generate.
std::string why_no_sample(const RunSpec& run);

// What turns text into the tokens of this run and back: sample.tokenizer, or the tokenizer in the Hugging Face folder
// that the model comes from, or bytes (data.kind = "text", or a vocabulary of up to 256). Errors: config, when there is
// none, or it has more tokens than the model; otherwise as open_tokenizer.
std::unique_ptr<Tokenizer> open_run_tokenizer(const RunSpec& run, const ModelSpec& model);

struct GeneratedText {
  int64_t tokens = 0;
  bool ended = false;  // by the token that ends a document, which is not part of the text
};

// Continues spec.prompt by up to spec.tokens tokens; the context is the last train.seq_len of them. Rank 0 has the
// tokenizer, on the others it is null; there `show` is never called. `show` gets each piece of text after the prompt as
// it comes, as whole UTF-8 characters. Collective over the world. Errors: config, data, when the prompt cannot be
// encoded.
GeneratedText generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                       const std::function<void(std::string_view)>& show);

}  // namespace mw
