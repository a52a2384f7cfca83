// Conversations as tokens: the fixed chat templates of model families, and which tokens of them count in the loss.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokens/tokenizer.h"

namespace mw {

struct ChatMessage {
  std::string role, content;
  std::optional<bool> loss;  // whether its content counts in the loss; none: that of the role "assistant" alone
};

// Texts around the messages of one role.
struct ChatRole {
  std::string_view role, before;
  std::string_view end;  // one token, which counts as the content does; empty: none
  std::string_view after;
  std::string_view lead = {};  // text between `before` and the content, which counts as the content does
};

struct ChatTemplate {
  std::string_view name, families;
  std::string_view begin;           // one token before the first message; empty: none
  std::string_view intro;           // text after it
  std::span<const ChatRole> roles;  // the last one is the assistant's
  const ChatRole* last = nullptr;   // texts of an answer that ends the conversation; null: those of any answer
  bool spells_marks = false;        // marks in texts are no tokens of the family's tokenizer
  bool shares_ends = false;         // the token that ends an answer begins the user's next message, too

  const ChatRole& last_answer() const { return last != nullptr ? *last : roles.back(); }
  bool ends_answers() const { return !last_answer().end.empty(); }
  // Whether a conversation can go on without being encoded again: answers begin alike wherever they are.
  bool takes_turns() const;
};

std::span<const ChatTemplate> chat_templates();

// Of all, or of those whose answers end with a token; with commas between them.
std::string chat_template_names(bool for_answers);

// Errors: Exit::usage naming the templates that there are, where there is none of this name, or for_answers is set and
// its answers do not end with a token.
const ChatTemplate& find_chat_template(std::string_view name, bool for_answers = false);

// The tokens of a template, and the marks in its texts that are one token, such as <|user|>; some more than once.
std::vector<std::string_view> chat_tokens(const ChatTemplate& form);
// Checks that the tokenizer has them all, so that no mark is spelled. Errors: Exit::usage, naming the first that it
// lacks.
void check_chat_tokens(const ChatTemplate& form, const Tokenizer& tokenizer);

// The list of {"role", "content", "loss"} in the field `key` of a JSON object. Other fields are passed over. Content is
// a string, or a list of {"type": "text", "text"}, as of OpenAI. ShareGPT's names are known, too: "conversations" for
// "messages", "from" for "role" ("human" and "gpt" for "user" and "assistant") and "value" for "content". Errors:
// Exit::data with `where`.
std::vector<ChatMessage> parse_chat(std::string_view json, const std::string& key, const std::string& where);

// Appends the ids of the conversation and, for each of them, 1 where it counts in the loss, else 0. A token never
// crosses the border between what counts and what does not. Errors: Exit::data with `where`, on a role that the
// template does not have; Exit::usage where the tokenizer lacks a token of the template.
void encode_chat(const ChatTemplate& form, std::span<const ChatMessage> messages, const std::string& where,
                 Tokenizer& tokenizer, std::vector<int32_t>& ids, std::vector<uint8_t>& mask);

// A conversation with a model: the same ids as encode_chat's of all its messages.
class ChatTurns {
 public:
  // Answers of the template must end with a token, and the tokenizer outlive this object. Errors: Exit::usage, where
  // the tokenizer lacks a token of the template.
  ChatTurns(const ChatTemplate& form, Tokenizer& tokenizer);
  // The tokens that end an answer: the last one of a conversation, and any before it. They can be the same.
  const std::array<int32_t, 2>& ends() const { return ends_; }
  // The ids of a conversation up to the begin of its next answer. Errors: as Tokenizer::encode.
  std::vector<int32_t> encode(std::span<const ChatMessage> messages) const;
  // For a template that takes turns, the ids that follow an answer: from the token that ends one in the middle of a
  // conversation to the begin of the next answer, around what the user says. The token with which the answer ended
  // stays out of the conversation. Errors: as Tokenizer::encode.
  std::vector<int32_t> encode_next(const std::string& user) const;

 private:
  const ChatTemplate& form_;
  Tokenizer& tokenizer_;
  std::array<int32_t, 2> ends_;
};

}  // namespace mw
