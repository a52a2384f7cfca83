#include "formats/tokens/chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

int32_t id_of(const Tokenizer& tokenizer, std::string_view token, const ChatTemplate& form) {
  const std::optional<int32_t> id = tokenizer.id_of(token);
  if (!id)
    fail(Exit::usage, fmt::format("the tokenizer has no token {} of the chat template {}", token, form.name),
         "choose the template of the tokenizer's model");
  return *id;
}

// Whether `text` begins with a mark, as of <|user|>, </think> or [gMASK]; returns it.
std::string_view mark_at(std::string_view text) {
  for (const std::string_view other : {"[gMASK]", "]~b]"})
    if (text.starts_with(other)) return other;
  const size_t end = text.find('>');
  if (!text.starts_with('<') || end == std::string_view::npos) return {};
  const std::string_view mark = text.substr(0, end + 1);
  return mark.find_first_of(" \n") == std::string_view::npos ? mark : std::string_view{};
}

void add_marks(std::string_view text, std::vector<std::string_view>& marks) {
  while (!text.empty()) {
    const std::string_view mark = mark_at(text);
    if (!mark.empty()) marks.push_back(mark);
    text.remove_prefix(std::max<size_t>(mark.size(), 1));
  }
}

[[noreturn]] void fail_message(const std::string& where, size_t index, const char* expected) {
  fail(Exit::data, fmt::format("{}: message {}: expected {}", where, index + 1, expected),
       "write {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]} in each line");
}

}  // namespace

std::vector<std::string_view> chat_tokens(const ChatTemplate& form) {
  std::vector<std::string_view> tokens;
  if (!form.begin.empty()) tokens.push_back(form.begin);
  std::vector<const ChatRole*> roles = {&form.last_answer()};
  for (const ChatRole& role : form.roles) roles.push_back(&role);
  for (const ChatRole* role : roles)
    if (!role->end.empty()) tokens.push_back(role->end);
  if (form.spells_marks) return tokens;
  add_marks(form.intro, tokens);
  for (const ChatRole* role : roles)
    for (const std::string_view text : {role->before, role->lead, role->after}) add_marks(text, tokens);
  return tokens;
}

void check_chat_tokens(const ChatTemplate& form, const Tokenizer& tokenizer) {
  for (const std::string_view token : chat_tokens(form)) id_of(tokenizer, token, form);
}

namespace {

// Which of two names of a field a message has; the first where it has neither.
const char* name_of_field(const nlohmann::json& item, const char* name, const char* other) {
  return item.is_object() && !item.contains(name) && item.contains(other) ? other : name;
}

std::string read_role(const nlohmann::json& item, const std::string& where, size_t index) {
  const char* const name = name_of_field(item, "role", "from");
  if (!item.is_object() || !item.contains(name) || !item[name].is_string())
    fail_message(where, index, "a string in \"role\"");
  std::string role = item[name].get<std::string>();
  if (name == std::string_view("from")) {  // ShareGPT's names
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
  }
  return role;
}

// A string, or a list of parts that are all text.
std::string read_content(const nlohmann::json& item, const std::string& where, size_t index) {
  const char* const name = name_of_field(item, "content", "value");
  const nlohmann::json none, &content = item.contains(name) ? item[name] : none;
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) fail_message(where, index, "a string in \"content\"");
  std::string text;
  for (const nlohmann::json& part : content) {
    const bool is_text = part.is_object() && part.value("type", nlohmann::json()) == "text" && part.contains("text") &&
                         part["text"].is_string();
    if (!is_text) fail_message(where, index, "a string in \"content\", or a list of parts of type \"text\"");
    text += part["text"].get<std::string>();
  }
  return text;
}

}  // namespace

std::vector<ChatMessage> parse_chat(std::string_view json, const std::string& key, const std::string& where) {
  const nlohmann::json line = parse_json(json, where, Exit::data);
  const std::string used = key == "messages" ? name_of_field(line, "messages", "conversations") : key;
  if (!line.is_object() || !line.contains(used) || !line[used].is_array())
    fail(Exit::data, fmt::format("{}: expected an object with a list of messages in \"{}\"", where, key),
         "pass the name of the field with the messages as --key NAME");
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& item : line[used]) {
    std::string role = read_role(item, where, messages.size());
    ChatMessage message{std::move(role), read_content(item, where, messages.size()), {}};
    if (item.contains("loss")) {
      if (!item["loss"].is_boolean()) fail_message(where, messages.size(), "true or false in \"loss\"");
      message.loss = item["loss"].get<bool>();
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

namespace {

// Collects the ids of texts and tokens. Texts that follow each other and count alike are encoded together.
class Encoder {
 public:
  Encoder(const ChatTemplate& form, Tokenizer& tokenizer, std::vector<int32_t>& ids, std::vector<uint8_t>& mask)
      : form_(form), tokenizer_(tokenizer), ids_(ids), mask_(mask) {}

  void append(std::string_view more, bool in_loss) {
    if (form_.shares_ends && more.starts_with(last_token_)) more.remove_prefix(last_token_.size());
    if (more.empty()) return;
    last_token_ = {};
    if (in_loss != counts_) finish();
    counts_ = in_loss;
    text_ += more;
  }
  void append_token(std::string_view token, bool in_loss) {
    if (token.empty()) return;
    finish();
    ids_.push_back(id_of(tokenizer_, token, form_));
    mask_.push_back(in_loss);
    last_token_ = token;
  }
  void append(const ChatRole& role, std::string_view content, bool in_loss) {
    append(role.before, false);
    append(role.lead, in_loss);
    append(content, in_loss);
    append_token(role.end, in_loss);
    append(role.after, false);
  }
  void begin() {
    append_token(form_.begin, false);
    append(form_.intro, false);
  }
  void finish() {
    if (!text_.empty()) tokenizer_.encode(text_, ids_);
    text_.clear();
    mask_.resize(ids_.size(), counts_);
  }

 private:
  const ChatTemplate& form_;
  Tokenizer& tokenizer_;
  std::vector<int32_t>& ids_;
  std::vector<uint8_t>& mask_;
  std::string text_;             // not yet encoded
  bool counts_ = false;          // whether it counts in the loss
  std::string_view last_token_;  // before the text
};

const ChatRole* find_role(const ChatTemplate& form, std::string_view name) {
  const auto role =
      std::find_if(form.roles.begin(), form.roles.end(), [&](const ChatRole& r) { return r.role == name; });
  return role == form.roles.end() ? nullptr : &*role;
}

}  // namespace

namespace {

// is_whole: the last message ends the conversation.
void append_messages(Encoder& encoder, const ChatTemplate& form, std::span<const ChatMessage> messages, bool is_whole,
                     const std::string& where) {
  encoder.begin();
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const ChatRole* role = find_role(form, message.role);
    if (role == nullptr)
      fail(Exit::data,
           fmt::format("{}: message {}: the chat template {} has no role \"{}\"", where, i + 1, form.name,
                       printable(message.role)),
           "rename the role, or leave the message out");
    const bool is_answer = message.role == "assistant", is_last = i + 1 == messages.size();
    if (is_answer && is_whole && is_last) role = &form.last_answer();
    ChatRole texts = *role;
    if (form.shares_ends && !is_last && messages[i + 1].role != "user") texts.end = {};
    encoder.append(texts, message.content, message.loss.value_or(is_answer));
  }
}

}  // namespace

void encode_chat(const ChatTemplate& form, std::span<const ChatMessage> messages, const std::string& where,
                 Tokenizer& tokenizer, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) {
  Encoder encoder(form, tokenizer, ids, mask);
  append_messages(encoder, form, messages, true, where);
  encoder.finish();
}

ChatTurns::ChatTurns(const ChatTemplate& form, Tokenizer& tokenizer)
    : form_(form),
      tokenizer_(tokenizer),
      ends_{id_of(tokenizer, form.last_answer().end, form), id_of(tokenizer, form.roles.back().end, form)} {
  check_chat_tokens(form, tokenizer);
}

std::vector<int32_t> ChatTurns::encode(std::span<const ChatMessage> messages) const {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  Encoder encoder(form_, tokenizer_, ids, mask);
  append_messages(encoder, form_, messages, false, "the conversation");
  encoder.append(form_.last_answer().before, false);
  encoder.finish();
  return ids;
}

std::vector<int32_t> ChatTurns::encode_next(const std::string& user) const {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  Encoder encoder(form_, tokenizer_, ids, mask);
  const ChatRole& answers = form_.roles.back();
  encoder.append_token(answers.end, false);
  encoder.append(answers.after, false);
  encoder.append(*find_role(form_, "user"), user, false);
  encoder.append(answers.before, false);
  encoder.finish();
  return ids;
}

}  // namespace mw
