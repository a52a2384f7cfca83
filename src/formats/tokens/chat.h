// Conversations as tokens: the fixed chat templates of model families, and which tokens of them count in the loss.
#pragma once

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
};

struct ChatTemplate {
  std::string_view name, families;
  std::string_view begin;  // one token before the first message; empty: none
  std::string_view intro;  // text after it
  std::span<const ChatRole> roles;

  // The last role is the assistant's.
  bool ends_answers() const { return !roles.back().end.empty(); }
};

std::span<const ChatTemplate> chat_templates();

// Errors: Exit::usage naming the templates that there are.
const ChatTemplate& find_chat_template(std::string_view name);

// The list of {"role", "content", "loss"} in the field `key` of a JSON object. Other fields are passed over. Errors:
// Exit::data with `where`.
std::vector<ChatMessage> parse_chat(std::string_view json, const std::string& key, const std::string& where);

// Appends the ids of the conversation and, for each of them, 1 where it counts in the loss, else 0. A token never
// crosses the border between what counts and what does not. Errors: Exit::data with `where`, on a role that the
// template does not have; Exit::usage where the tokenizer lacks a token of the template.
void encode_chat(const ChatTemplate& form, std::span<const ChatMessage> messages, const std::string& where,
                 Tokenizer& tokenizer, std::vector<int32_t>& ids, std::vector<uint8_t>& mask);

// A conversation with a model, turn by turn: the same ids as encode_chat's of all its messages.
class ChatTurns {
 public:
  // The tokenizer must outlive this object. Errors: Exit::usage, of a template that does not end answers by a token, or
  // where the tokenizer lacks a token of the template.
  ChatTurns(const ChatTemplate& form, Tokenizer& tokenizer);
  int32_t end() const { return end_; }  // the token that ends an answer
  // The ids from the end of the answer before to the begin of the next one, around what the user says. is_first: there
  // was no answer. had_end: the answer before ended with end(). Errors: as Tokenizer::encode.
  std::vector<int32_t> encode(const std::string& user, bool is_first, bool had_end) const;

 private:
  const ChatTemplate& form_;
  Tokenizer& tokenizer_;
  int32_t end_;
};

}  // namespace mw
