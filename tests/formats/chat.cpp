// Chat templates: which text a conversation becomes, and which of its tokens count in the loss.
#include "formats/tokens/chat.h"

#include <algorithm>
#include <map>

#include "formats/byte_level_tokenizer.h"

namespace mw::test {
namespace {

// With the special tokens of all templates.
std::unique_ptr<Tokenizer> tokenizer() {
  std::vector<std::string_view> special;
  const auto add = [&](std::string_view token) {
    if (!token.empty() && std::find(special.begin(), special.end(), token) == special.end()) special.push_back(token);
  };
  for (const ChatTemplate& form : chat_templates())
    for (const std::string_view token : chat_tokens(form)) add(token);
  return byte_level_tokenizer(special);
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

template <class Work>
std::string hint_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.hint();
  }
  return "no error";
}

const std::vector<ChatMessage> kTalk = {
    {"user", "Hi,\nyou", {}}, {"assistant", "Yes?", {}}, {"user", "Go", {}}, {"assistant", "No", {}}};

std::vector<ChatMessage> with_system(std::vector<ChatMessage> talk) {
  talk.insert(talk.begin(), {"system", "S", {}});
  return talk;
}

// What the models' own templates render; see tools/make_chat_golden.py.
nlohmann::json goldens() {
  return nlohmann::json::parse(read_raw(MOEWRIGHT_SOURCE_DIR "/tests/golden/chat_templates.json"));
}

// Without what Moewright does not write.
std::string text_of(const nlohmann::json& golden, const char* key) {
  std::string text = golden.at(key);
  for (const nlohmann::json& piece : golden.at("left_out")) {
    const auto part = piece.get<std::string>();
    if (const size_t at = text.find(part); at != std::string::npos) text.erase(at, part.size());
  }
  return text;
}

TEST(Chat, TemplatesRenderAsTheirModels) {
  const nlohmann::json all = goldens();
  for (const auto& [name, golden] : all.items()) {
    SCOPED_TRACE(name);
    const ChatTemplate& form = find_chat_template(name);
    const std::string end(form.shares_ends ? form.last_answer().end : "");  // which templates leave to the next message
    EXPECT_EQ(render(name, kTalk).text, text_of(golden, "no_system") + end);
    if (golden.contains("system")) {
      EXPECT_EQ(render(name, with_system(kTalk)).text, text_of(golden, "system") + end);
    }
  }
  for (const ChatTemplate& form : chat_templates())
    EXPECT_TRUE(all.contains(form.name) || form.name == "plain" || form.name == "dots") << form.name;
  EXPECT_EQ(render("plain", with_system(kTalk)).text, "SHi,\nyouYes?GoNo");
  EXPECT_EQ(render("dots", with_system(kTalk)).text,
            "<|system|>S<|endofsystem|><|userprompt|>Hi,\nyou<|endofuserprompt|><|response|>Yes?<|endofresponse|>"
            "<|userprompt|>Go<|endofuserprompt|><|response|>No<|endofresponse|>");
}

// An answer, and the token that ends it.
TEST(Chat, AnswersCount) {
  const std::map<std::string_view, const char*> counted = {
      {"plain", "Yes?|No|"},
      {"chatml", "Yes?<|im_end|>|No<|im_end|>|"},
      {"qwen3", "Yes?<|im_end|>|No<|im_end|>|"},
      {"mixtral", "Yes?</s>|No</s>|"},
      {"deepseek_v2", " Yes?<｜end▁of▁sentence｜>| No<｜end▁of▁sentence｜>|"},
      {"deepseek_v3", "Yes?<｜end▁of▁sentence｜>|No<｜end▁of▁sentence｜>|"},
      {"deepseek_v31", "Yes?<｜end▁of▁sentence｜>|No<｜end▁of▁sentence｜>|"},
      {"glm4", "\nYes?<|user|>|\nNo<|user|>|"},
      {"kimi", "Yes?<|im_end|>|No<|im_end|>|"},
      {"dots", "Yes?<|endofresponse|>|No<|endofresponse|>|"},
      {"granite", "Yes?<|end_of_text|>|No<|end_of_text|>|"},
      {"phi", "Yes?<|end|>|No<|end|>|"},
      {"gpt_oss", "Yes?<|end|>|No<|return|>|"},
      {"minimax", "Yes?[e~[|No[e~[|"},
      {"ernie", "Yes?<|end_of_sentence|>|No<|end_of_sentence|>|"},
      {"hunyuan", "Yes?<|eos|>|No<|eos|>|"},
      {"olmoe", "Yes?<|endoftext|>|No<|endoftext|>|"}};
  for (const ChatTemplate& form : chat_templates()) {
    SCOPED_TRACE(form.name);
    EXPECT_EQ(render(std::string(form.name), kTalk).counted, counted.at(form.name));
  }
}

// A token that ends an answer and begins the user's next message stands there once; before other messages, not at all.
TEST(Chat, SharedEndsStandOnce) {
  std::vector<ChatMessage> talk = kTalk;
  talk[2].role = "system";
  EXPECT_EQ(render("glm4", talk).text,
            "[gMASK]<sop><|user|>\nHi,\nyou<|assistant|>\n<think></think>\nYes?<|system|>\nGo<|assistant|>\n<think></"
            "think>\nNo<|user|>");
  EXPECT_EQ(render("glm4", talk).counted, "\nYes?|\nNo<|user|>|");
}

TEST(Chat, AMessageMaySayWhetherItCounts) {
  std::vector<ChatMessage> talk = kTalk;
  talk[0].loss = true;
  talk[1].loss = false;
  EXPECT_EQ(render("chatml", talk).counted, "Hi,\nyou<|im_end|>|No<|im_end|>|");
  talk[1].loss = true;
  EXPECT_EQ(render("plain", talk).counted, "Hi,\nyouYes?|No|");
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
  // Other ways to write them.
  const std::vector<ChatMessage> shared = read(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})");
  ASSERT_EQ(shared.size(), 3u);
  EXPECT_EQ(shared[1].role + shared[1].content + shared[2].role + shared[2].content, "useraassistantb");
  const std::vector<ChatMessage> parts = read(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].content, "ab");
  const auto error = [&](const std::string& line) { return error_of([&] { read(line); }); };
  EXPECT_TRUE(
      contains(error(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"), "parts of type"));
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
  EXPECT_TRUE(contains(hint_of([] { find_chat_template("llama"); }), "plain, chatml, qwen3,"));
  EXPECT_TRUE(contains(hint_of([] { find_chat_template("llama", true); }), "choose one of chatml, qwen3, mixtral,"));
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
  // Marks that such a tokenizer would spell, except those that the model's own spells, too.
  const auto lacking = [](const char* name, const std::vector<std::string_view>& special) {
    const std::unique_ptr<Tokenizer> tokens = byte_level_tokenizer(special);
    return error_of([&] { check_chat_tokens(find_chat_template(name), *tokens); }, Exit::usage);
  };
  EXPECT_TRUE(contains(lacking("kimi", {"<|im_end|>"}), "no token <|im_assistant|> of the chat template kimi"));
  EXPECT_TRUE(contains(lacking("qwen3", {"<|im_end|>", "<|im_start|>"}), "no token <think>"));
  EXPECT_TRUE(contains(lacking("glm4", {"<|user|>"}), "no token [gMASK]"));
  check_chat_tokens(find_chat_template("olmoe"), *byte_level_tokenizer({"<|endoftext|>"}));
}

// Texts that end with the begin of an answer. GLM's template leaves it to the model whether that is a thought.
std::string question_of(const nlohmann::json& all, const ChatTemplate& form, const char* key) {
  return text_of(all.at(form.name), key) + (form.name == "glm4" ? "\n<think></think>" : "");
}

// Turn by turn the ids are those of the whole conversation, but for the last answer's own end.
TEST(ChatTurns, AreTheConversation) {
  const std::unique_ptr<Tokenizer> tokens = tokenizer();
  const nlohmann::json all = goldens();
  for (const ChatTemplate& form : chat_templates()) {
    SCOPED_TRACE(form.name);
    if (!form.ends_answers() || !form.takes_turns()) continue;
    const ChatTurns turns(form, *tokens);
    std::vector<int32_t> ids = turns.encode(std::span(kTalk).first(1));
    if (all.contains(form.name)) {
      EXPECT_EQ(tokens->decode(ids), question_of(all, form, "question"));
    }
    const auto answer = [&](const char* text) { tokens->encode(std::string(form.roles.back().lead) + text, ids); };
    answer("Yes?");
    const std::vector<int32_t> more = turns.encode_next("Go");
    ids.insert(ids.end(), more.begin(), more.end());
    if (all.contains(form.name)) {
      EXPECT_EQ(tokens->decode(ids), question_of(all, form, "turns"));
    }
    answer("No");
    ids.push_back(turns.ends()[0]);
    std::vector<int32_t> whole;
    std::vector<uint8_t> mask;
    encode_chat(form, kTalk, "here", *tokens, whole, mask);
    whole.resize(ids.size());  // without what follows the last answer
    EXPECT_EQ(ids, whole);
  }
}

TEST(ChatTurns, EndWithEitherTokenOfAnAnswer) {
  const std::unique_ptr<Tokenizer> tokens = tokenizer();
  const ChatTurns turns(find_chat_template("gpt_oss", true), *tokens);
  EXPECT_EQ(tokens->decode(turns.ends()), "<|return|><|end|>");
}

// Encoded again in each turn, a conversation is what the family's template makes of it, also where that writes earlier
// answers in another way.
TEST(ChatTurns, AgainAreTheConversation) {
  const std::unique_ptr<Tokenizer> tokens = tokenizer();
  const nlohmann::json all = goldens();
  for (const ChatTemplate& form : chat_templates()) {
    SCOPED_TRACE(form.name);
    if (!form.ends_answers()) continue;
    const ChatTurns turns(form, *tokens);
    const auto encoded = [&](size_t messages) { return turns.encode(std::span(kTalk).first(messages)); };
    if (all.contains(form.name)) {  // whose models may begin an answer with a thought
      const std::string no_thought(form.last_answer().before.substr(form.roles.back().before.size()));
      EXPECT_EQ(tokens->decode(encoded(1)), question_of(all, form, "question") + no_thought);
      EXPECT_EQ(tokens->decode(encoded(3)), question_of(all, form, "turns") + no_thought);
    }
    std::vector<int32_t> ids = encoded(3), whole;
    tokens->encode(std::string(form.last_answer().lead) + "No", ids);
    ids.push_back(turns.ends()[0]);
    std::vector<uint8_t> mask;
    encode_chat(form, kTalk, "here", *tokens, whole, mask);
    whole.resize(ids.size());  // without what follows the last answer
    EXPECT_EQ(ids, whole);
  }
}

TEST(ChatTemplates, ForAnswersAreThoseThatEndThem) {
  for (const ChatTemplate& form : chat_templates()) {
    const auto find = [&] { find_chat_template(form.name, true); };
    if (form.ends_answers()) {
      EXPECT_NO_THROW(find()) << form.name;
    } else {
      EXPECT_TRUE(contains(hint_of(find), "choose one of chatml, qwen3, mixtral,")) << form.name;
    }
  }
  const auto error = [](const char* name) { return error_of([&] { find_chat_template(name, true); }, Exit::usage); };
  EXPECT_TRUE(contains(error("plain"), "no token that ends an answer"));
}

}  // namespace
}  // namespace mw::test
