// A conversation with a model, by a chat template (formats/tokens/chat.h) or as plain text: "User: TEXT\nAssistant:
// ANSWER\nUser: TEXT\nAssistant: ANSWER".
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "formats/tokens/chat.h"
#include "train/loop/generation.h"
#include "train/loop/sample.h"

namespace mw {

// Passes the text of an answer on, up to the words that begin the user's next turn.
class AnswerText {
 public:
  // Returns what can be shown; a piece that may begin these words is held back.
  std::string add(std::string_view piece);
  bool ended() const { return ended_; }
  std::string finish();  // what was held back, unless the answer has ended

 private:
  std::string held_;
  bool ended_ = false;
};

class Chat {
 public:
  // As for generate(). form: null for plain text, or one whose answers end with a token; alike on all ranks. Collective
  // over the world. All must outlive this object. Errors: as ChatTurns.
  Chat(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec, const ChatTemplate* form = nullptr);

  // On rank 0: the ids of the user's turn. Errors: as Sampler::encode; the conversation is as before.
  std::vector<int32_t> encode(const std::string& text);

  // Answers the turn that encode() returned, given on rank 0, with up to sample.tokens tokens: until the model ends the
  // answer or the document, or in plain text begins the user's next turn. Keys and values of earlier turns stay in the
  // cache, unless the template writes them in another way from then on. `show` is called on rank 0. Returns false when
  // a stop was asked for, or the turn has no tokens: the conversation is over. Collective over the world.
  bool answer(std::vector<int32_t> turn, const std::function<void(std::string_view)>& show);

 private:
  Engine& engine_;
  Tokenizer* tokenizer_;
  Sampler sampler_;
  int64_t most_;                                   // tokens of an answer
  bool again_;                                     // each turn encodes all of the conversation
  std::vector<ChatMessage> messages_;              // if again_, on rank 0
  std::optional<Generation> generation_;           // none before the first turn
  std::optional<ChatTurns> turns_;                 // of the template; on rank 0
  std::array<int32_t, 2> answer_ends_ = {-1, -1};  // the template's tokens
  bool user_began_ = false;                        // the last answer ended with the words that begin the user's turn
};

}  // namespace mw
