#include "formats/tokens/chat.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr ChatRole kPlain[] = {{"system", "", "", ""}, {"user", "", "", ""}, {"assistant", "", "", ""}};
constexpr ChatRole kChatml[] = {{"system", "<|im_start|>system\n", "<|im_end|>", "\n"},
                                {"user", "<|im_start|>user\n", "<|im_end|>", "\n"},
                                {"assistant", "<|im_start|>assistant\n", "<|im_end|>", "\n"}};
constexpr ChatRole kMixtral[] = {{"user", "[INST] ", "", " [/INST]"}, {"assistant", "", "</s>", ""}};
constexpr ChatRole kDeepSeekV2[] = {{"system", "", "", "\n\n"},
                                    {"user", "User: ", "", "\n\n"},
                                    {"assistant", "Assistant: ", "<｜end▁of▁sentence｜>", ""}};
constexpr ChatRole kDeepSeekV3[] = {{"system", "", "", ""},
                                    {"user", "<｜User｜>", "", ""},
                                    {"assistant", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", ""}};
constexpr ChatRole kGlm[] = {{"system", "<|system|>\n", "", ""},
                             {"user", "<|user|>\n", "", ""},
                             {"assistant", "<|assistant|>\n<think></think>\n", "", ""}};
constexpr ChatRole kKimi[] = {{"system", "<|im_system|>system<|im_middle|>", "<|im_end|>", ""},
                              {"user", "<|im_user|>user<|im_middle|>", "<|im_end|>", ""},
                              {"assistant", "<|im_assistant|>assistant<|im_middle|>", "<|im_end|>", ""}};
constexpr ChatRole kDots[] = {{"system", "<|system|>", "<|endofsystem|>", ""},
                              {"user", "<|userprompt|>", "<|endofuserprompt|>", ""},
                              {"assistant", "<|response|>", "<|endofresponse|>", ""}};
constexpr ChatRole kGranite[] = {{"system", "<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>", "\n"},
                                 {"user", "<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>", "\n"},
                                 {"assistant", "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>", "\n"}};
constexpr ChatRole kPhi[] = {{"system", "<|system|>\n", "<|end|>", "\n"},
                             {"user", "<|user|>\n", "<|end|>", "\n"},
                             {"assistant", "<|assistant|>\n", "<|end|>", "\n"}};

constexpr ChatTemplate kTemplates[] = {
    {"plain", "contents alone", "", "", kPlain},
    {"chatml", "Qwen2-MoE, Qwen3-MoE", "", "", kChatml},
    {"mixtral", "Mixtral", "<s>", "", kMixtral},
    {"deepseek_v2", "DeepSeek-V2", "<｜begin▁of▁sentence｜>", "", kDeepSeekV2},
    {"deepseek_v3", "DeepSeek-V3", "<｜begin▁of▁sentence｜>", "", kDeepSeekV3},
    {"glm4", "GLM-4.5 without thinking", "", "[gMASK]<sop>", kGlm},
    {"kimi", "Kimi K2", "", "", kKimi},
    {"dots", "dots.llm1", "", "", kDots},
    {"granite", "Granite MoE", "", "", kGranite},
    {"phi", "Phi-3.5-MoE", "", "", kPhi},
};

int32_t id_of(const Tokenizer& tokenizer, std::string_view token, const ChatTemplate& form) {
  const std::optional<int32_t> id = tokenizer.id_of(token);
  if (!id)
    fail(Exit::usage, fmt::format("the tokenizer has no token {} of the chat template {}", token, form.name),
         "choose the template of the tokenizer's model");
  return *id;
}

[[noreturn]] void fail_message(const std::string& where, size_t index, const char* expected) {
  fail(Exit::data, fmt::format("{}: message {}: expected {}", where, index + 1, expected),
       "write {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]} in each line");
}

}  // namespace

std::span<const ChatTemplate> chat_templates() { return kTemplates; }

const ChatTemplate& find_chat_template(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kTemplates), std::end(kTemplates), [&](const ChatTemplate& t) { return t.name == name; });
  if (found != std::end(kTemplates)) return *found;
  std::vector<std::string_view> names;
  for (const ChatTemplate& form : kTemplates) names.push_back(form.name);
  fail(Exit::usage, fmt::format("--chat: there is no template \"{}\"", printable(std::string(name))),
       fmt::format("choose one of {}", fmt::join(names, ", ")));
}

std::vector<ChatMessage> parse_chat(std::string_view json, const std::string& key, const std::string& where) {
  const nlohmann::json line = parse_json(json, where, Exit::data);
  if (!line.is_object() || !line.contains(key) || !line[key].is_array())
    fail(Exit::data, fmt::format("{}: expected an object with a list of messages in \"{}\"", where, key),
         "pass the name of the field with the messages as --key NAME");
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& item : line[key]) {
    const auto text = [&](const char* name, const char* expected) {
      if (!item.is_object() || !item.contains(name) || !item[name].is_string())
        fail_message(where, messages.size(), expected);
      return item[name].get<std::string>();
    };
    ChatMessage message{text("role", "a string in \"role\""), text("content", "a string in \"content\""), {}};
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
    if (more.empty()) return;
    if (in_loss != counts_) finish();
    counts_ = in_loss;
    text_ += more;
  }
  void append_token(std::string_view token, bool in_loss) {
    if (token.empty()) return;
    finish();
    ids_.push_back(id_of(tokenizer_, token, form_));
    mask_.push_back(in_loss);
  }
  void append(const ChatRole& role, std::string_view content, bool in_loss) {
    append(role.before, false);
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
  std::string text_;     // not yet encoded
  bool counts_ = false;  // whether it counts in the loss
};

const ChatRole* find_role(const ChatTemplate& form, std::string_view name) {
  const auto role =
      std::find_if(form.roles.begin(), form.roles.end(), [&](const ChatRole& r) { return r.role == name; });
  return role == form.roles.end() ? nullptr : &*role;
}

}  // namespace

void encode_chat(const ChatTemplate& form, std::span<const ChatMessage> messages, const std::string& where,
                 Tokenizer& tokenizer, std::vector<int32_t>& ids, std::vector<uint8_t>& mask) {
  Encoder encoder(form, tokenizer, ids, mask);
  encoder.begin();
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const ChatRole* role = find_role(form, message.role);
    if (role == nullptr)
      fail(Exit::data,
           fmt::format("{}: message {}: the chat template {} has no role \"{}\"", where, i + 1, form.name,
                       printable(message.role)),
           "rename the role, or leave the message out");
    encoder.append(*role, message.content, message.loss.value_or(message.role == "assistant"));
  }
  encoder.finish();
}

ChatTurns::ChatTurns(const ChatTemplate& form, Tokenizer& tokenizer) : form_(form), tokenizer_(tokenizer) {
  if (!form.ends_answers())
    fail(Exit::usage, fmt::format("the chat template {} has no token that ends an answer", form.name),
         "choose another template, or none");
  end_ = id_of(tokenizer, form.roles.back().end, form);
}

std::vector<int32_t> ChatTurns::encode(const std::string& user, bool is_first, bool had_end) const {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  Encoder encoder(form_, tokenizer_, ids, mask);
  const ChatRole& answers = form_.roles.back();
  if (is_first) encoder.begin();
  if (!is_first && !had_end) encoder.append_token(answers.end, false);
  if (!is_first) encoder.append(answers.after, false);
  encoder.append(*find_role(form_, "user"), user, false);
  encoder.append(answers.before, false);
  encoder.finish();
  return ids;
}

}  // namespace mw
