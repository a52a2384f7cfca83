// Multiple-choice questions: a model answers with the choice that is most likely to follow the context.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "formats/tokens/tokenizer.h"

namespace mw {

struct Question {
  std::string context;
  std::vector<std::string> choices;  // two or more, none empty
  int64_t answer = 0;                // index of the right one
};

// Reads JSON lines {"context": "2 + 2 =", "choices": [" 3", " 4"], "answer": 1}; other fields are ignored, and so are
// empty lines. Errors: data, naming file, line and field.
std::vector<Question> read_questions(const std::string& path);

// Shares of the questions that are answered right: the choice has the largest log-likelihood, or the largest one per
// byte of the choice. Of equals the first counts.
struct ChoiceResult {
  int64_t questions = 0;
  double accuracy = 0, accuracy_per_byte = 0;
  bool stopped = false;  // a stop request came: there is no result
};

// "accuracy 0.3120, per byte 0.3340, of 1000 questions".
std::string describe(const ChoiceResult& result);

// The tokens of a choice are those of context and choice together without as many as the context has alone. A context
// that is too long for train.seq_len loses its beginning; an empty one is the end-of-document token. All ranks have the
// same questions and tokenizer. Collective over the world. Errors: data, naming the question, when a choice has no
// tokens or more than train.seq_len, or its tokens are beyond the vocabulary; numeric, for a loss that is not finite.
ChoiceResult answer_questions(Engine& engine, Tokenizer& tokenizer, std::span<const Question> questions);

}  // namespace mw
