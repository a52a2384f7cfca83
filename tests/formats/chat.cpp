// Chat templates: which text a conversation becomes, and which of its tokens count in the loss.
#include "formats/tokens/chat.h"

#include <nlohmann/json.hpp>

#include "formats/helpers.h"
#include "formats/tokens/byte_level.h"

namespace mw::test {
namespace {

// All bytes, and the special tokens of all templates.
std::unique_ptr<Tokenizer> tokenizer() {
  nlohmann::json vocab = nlohmann::json::object(), added = nlohmann::json::array();
  for (int b = 0; b < 256; ++b) vocab[utf8(byte_level_character(static_cast<uint8_t>(b)))] = b;
  const auto add = [&](std::string_view token) {
    for (const nlohmann::json& other : added)
      if (token.empty() || other["content"] == token) return;
    added.push_back({{"id", 256 + added.size()}, {"content", token}, {"special", true}, {"normalized", false}});
  };
  add("<|im_start|>");
  for (const ChatTemplate& form : chat_templates()) {
    add(form.begin);
    for (const ChatRole& role : form.roles) add(role.end);
  }
  const nlohmann::json json = {{"added_tokens", added},
                               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return parse_bpe_tokenizer(json.dump(), "test", "");
}

struct Rendered {
  std::string text, counted;  // of all tokens, and of those in the loss with one | after each run of them
};

Rendered render(const std::string& name, const std::vector<ChatMessage>& messages) {
  const std::unique_ptr<Tokenizer> tokens = tokenizer();
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  encode_chat(find_chat_template(name), messages, "here", *tokens, ids, mask);
  EXPECT_EQ(ids.size(), mask.size());
  Rendered out{tokens->decode(ids), {}};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (mask[i] == 1) out.counted += tokens->decode(std::span(ids).subspan(i, 1));
    if (mask[i] == 1 && (i + 1 == ids.size() || mask[i + 1] == 0)) out.counted += '|';
  }
  return out;
}

const std::vector<ChatMessage> kTalk = {
    {"user", "Hi", {}}, {"assistant", "Yes?", {}}, {"user", "Go", {}}, {"assistant", "No", {}}};

TEST(Chat, EveryTemplateRendersAConversationAndCountsItsAnswers) {
  struct Case {
    const char *name, *text, *counted;
    bool system = true;
  };
  const Case cases[] = {
      {"plain", "SHiYes?GoNo", "Yes?|No|"},
      {"chatml",
       "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
       "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\nNo<|im_end|>\n",
       "Yes?<|im_end|>|No<|im_end|>|"},
      {"mixtral", "<s>[INST] Hi [/INST]Yes?</s>[INST] Go [/INST]No</s>", "Yes?</s>|No</s>|", false},
      {"deepseek_v2",
       "<｜begin▁of▁sentence｜>S\n\nUser: Hi\n\nAssistant: Yes?<｜end▁of▁sentence｜>User: Go\n\nAssistant: "
       "No<｜end▁of▁sentence｜>",
       "Yes?<｜end▁of▁sentence｜>|No<｜end▁of▁sentence｜>|"},
      {"deepseek_v3",
       "<｜begin▁of▁sentence｜>S<｜User｜>Hi<｜Assistant｜>Yes?<｜end▁of▁sentence｜><｜User｜>Go<｜Assistant｜>"
       "No<｜end▁of▁sentence｜>",
       "Yes?<｜end▁of▁sentence｜>|No<｜end▁of▁sentence｜>|"},
      {"glm4",
       "[gMASK]<sop><|system|>\nS<|user|>\nHi<|assistant|>\n<think></think>\nYes?<|user|>\nGo<|assistant|>\n"
       "<think></think>\nNo",
       "Yes?|No|"},
      {"kimi",
       "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant"
       "<|im_middle|>Yes?<|im_end|><|im_user|>user<|im_middle|>Go<|im_end|><|im_assistant|>assistant<|im_middle|>No"
       "<|im_end|>",
       "Yes?<|im_end|>|No<|im_end|>|"},
      {"dots",
       "<|system|>S<|endofsystem|><|userprompt|>Hi<|endofuserprompt|><|response|>Yes?<|endofresponse|><|userprompt|>Go"
       "<|endofuserprompt|><|response|>No<|endofresponse|>",
       "Yes?<|endofresponse|>|No<|endofresponse|>|"},
      {"granite",
       "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
       "<|start_of_role|>assistant<|end_of_role|>Yes?<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Go"
       "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>No<|end_of_text|>\n",
       "Yes?<|end_of_text|>|No<|end_of_text|>|"},
      {"phi",
       "<|system|>\nS<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nGo<|end|>\n<|assistant|>\nNo"
       "<|end|>\n",
       "Yes?<|end|>|No<|end|>|"}};
  EXPECT_EQ(std::size(cases), chat_templates().size());
  for (const Case& c : cases) {
    std::vector<ChatMessage> talk = kTalk;
    if (c.system) talk.insert(talk.begin(), {"system", "S", {}});
    const Rendered out = render(c.name, talk);
    EXPECT_EQ(out.text, c.text);
    EXPECT_EQ(out.counted, c.counted) << c.name;
  }
}

TEST(Chat, AMessageMaySayWhetherItCounts) {
  std::vector<ChatMessage> talk = kTalk;
  talk[0].loss = true;
  talk[1].loss = false;
  EXPECT_EQ(render("chatml", talk).counted, "Hi<|im_end|>|No<|im_end|>|");
  talk[1].loss = true;
  EXPECT_EQ(render("plain", talk).counted, "HiYes?|No|");
}

TEST(Chat, ReadsMessages) {
  const auto read = [](const std::string& line) { return parse_chat(line, "messages", "x.jsonl:3"); };
  const std::vector<ChatMessage> found = read(
      R"({"id": 7, "messages": [{"role": "user", "content": "a", "loss": true}, {"role": "tool", "content": "", "x": 1}]})");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].role + found[0].content, "usera");
  EXPECT_EQ(found[0].loss, true);
  EXPECT_EQ(found[1].role, "tool");
  EXPECT_EQ(found[1].loss, std::nullopt);
  const auto error = [&](const std::string& line) { return error_of([&] { read(line); }); };
  for (const char* line : {"[]", "{}", R"({"messages": "a"})", R"({"text": []})"})
    EXPECT_TRUE(contains(error(line), "x.jsonl:3: expected an object with a list of messages in \"messages\"")) << line;
  EXPECT_TRUE(contains(error("{"), "x.jsonl:3"));
  EXPECT_TRUE(contains(error(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]})"),
                       "x.jsonl:3: message 2: expected a string in \"content\""));
  EXPECT_TRUE(contains(error(R"({"messages": [1]})"), "message 1: expected a string in \"role\""));
  EXPECT_TRUE(contains(error(R"({"messages": [{"role": "user", "content": "a", "loss": 1}]})"), "true or false"));
}

TEST(Chat, RefusesUnknownTemplatesRolesAndTokenizersOfOtherModels) {
  EXPECT_TRUE(contains(error_of([] { find_chat_template("llama"); }, Exit::usage), "no template \"llama\""));
  EXPECT_TRUE(contains(error_of([] {
                         render("mixtral", {{"system", "S", {}}});
                       }),
                       "here: message 1: the chat template mixtral has no role \"system\""));
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  const std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();
  EXPECT_TRUE(contains(
      error_of([&] { encode_chat(find_chat_template("kimi"), kTalk, "here", *bytes, ids, mask); }, Exit::usage),
      "no token <|im_end|> of the chat template kimi"));
}

// Turn by turn the ids are those of the whole conversation, whether an answer ended by itself or was cut.
TEST(ChatTurns, AreTheConversation) {
  const std::unique_ptr<Tokenizer> tokens = tokenizer();
  for (const ChatTemplate& form : chat_templates()) {
    SCOPED_TRACE(form.name);
    if (!form.ends_answers()) {
      EXPECT_TRUE(contains(error_of([&] { ChatTurns(form, *tokens); }, Exit::usage), "no token that ends an answer"));
      continue;
    }
    const ChatTurns turns(form, *tokens);
    for (const bool had_end : {true, false}) {
      std::vector<int32_t> ids = turns.encode("Hi", true, false);
      tokens->encode("Yes?", ids);
      if (had_end) ids.push_back(turns.end());
      const std::vector<int32_t> more = turns.encode("Go", false, had_end);
      ids.insert(ids.end(), more.begin(), more.end());
      tokens->encode("No", ids);
      ids.push_back(turns.end());
      std::vector<int32_t> whole;
      std::vector<uint8_t> mask;
      encode_chat(form, kTalk, "here", *tokens, whole, mask);
      whole.resize(ids.size());  // without what follows the last answer
      EXPECT_EQ(ids, whole);
    }
  }
}

}  // namespace
}  // namespace mw::test
