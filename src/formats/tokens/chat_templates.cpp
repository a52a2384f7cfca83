// The texts that families of models put around messages, as their own templates write them without tools and thoughts
// (tests/golden/chat_templates.json).
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/tokens/chat.h"

namespace mw {
namespace {

constexpr ChatRole kPlain[] = {{"system", "", "", ""}, {"user", "", "", ""}, {"assistant", "", "", ""}};
constexpr ChatRole kChatml[] = {{"system", "<|im_start|>system\n", "<|im_end|>", "\n"},
                                {"user", "<|im_start|>user\n", "<|im_end|>", "\n"},
                                {"assistant", "<|im_start|>assistant\n", "<|im_end|>", "\n"}};
constexpr ChatRole kLastOfQwen3{"assistant", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>", "\n"};
// A SentencePiece tokenizer puts a space before each of these texts and before the contents, as the model knows them.
constexpr ChatRole kMixtral[] = {{"user", "[INST] ", "", " [/INST]"}, {"assistant", "", "</s>", ""}};
constexpr ChatRole kDeepSeekV2[] = {{"system", "", "", "\n\n"},
                                    {"user", "User: ", "", "\n\n"},
                                    {"assistant", "Assistant:", "<｜end▁of▁sentence｜>", "", " "}};
constexpr ChatRole kDeepSeekV3[] = {{"system", "", "", ""},
                                    {"user", "<｜User｜>", "", ""},
                                    {"assistant", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", ""}};
constexpr ChatRole kDeepSeekV31[] = {{"system", "", "", ""},
                                     {"user", "<｜User｜>", "", ""},
                                     {"assistant", "<｜Assistant｜></think>", "<｜end▁of▁sentence｜>", ""}};
constexpr ChatRole kGlm[] = {{"system", "<|system|>\n", "", ""},
                             {"user", "<|user|>\n", "", ""},
                             {"assistant", "<|assistant|>\n<think></think>", "<|user|>", "", "\n"}};
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
constexpr ChatRole kLastOfPhi{"assistant", "<|assistant|>\n", "<|end|>", "\n<|endoftext|>"};
// The system message of gpt-oss is the template's own; what a conversation calls so are the developer's instructions.
constexpr std::string_view kBeginOfGptOss =
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: "
    "2024-06\n\n"
    "Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
    "<|end|>";
constexpr ChatRole kGptOss[] = {{"system", "<|start|>developer<|message|># Instructions\n\n", "", "\n\n<|end|>"},
                                {"developer", "<|start|>developer<|message|># Instructions\n\n", "", "\n\n<|end|>"},
                                {"user", "<|start|>user<|message|>", "<|end|>", ""},
                                {"assistant", "<|start|>assistant<|channel|>final<|message|>", "<|end|>", ""}};
constexpr ChatRole kLastOfGptOss{"assistant", "<|start|>assistant<|channel|>final<|message|>", "<|return|>", ""};
constexpr ChatRole kMiniMax[] = {{"system", "]~b]system\n", "[e~[", "\n"},
                                 {"user", "]~b]user\n", "[e~[", "\n"},
                                 {"assistant", "]~b]ai\n", "[e~[", "\n"}};
constexpr ChatRole kErnie[] = {
    {"system", "", "", "\n"}, {"user", "User: ", "", "\n"}, {"assistant", "Assistant: ", "<|end_of_sentence|>", ""}};
constexpr ChatRole kHunyuan[] = {{"system", "", "<|extra_4|>", ""},
                                 {"user", "", "<|extra_0|>", ""},
                                 {"assistant", "", "<|eos|>", "<|startoftext|>"}};
constexpr ChatRole kLastOfHunyuan{"assistant", "", "<|eos|>", ""};
constexpr ChatRole kOlmoe[] = {{"system", "<|system|>\n", "", "\n"},
                               {"user", "<|user|>\n", "", "\n"},
                               {"assistant", "<|assistant|>\n", "<|endoftext|>", "\n"}};
constexpr ChatRole kLastOfOlmoe{"assistant", "<|assistant|>\n", "<|endoftext|>", ""};

constexpr ChatTemplate kTemplates[] = {
    {"plain", "contents alone", "", "", kPlain},
    {"chatml", "Qwen2-MoE, Qwen3-MoE Instruct 2507", "", "", kChatml},
    {"qwen3", "Qwen3-MoE without thinking", "", "", kChatml, &kLastOfQwen3},
    {"mixtral", "Mixtral", "<s>", "", kMixtral},
    {"deepseek_v2", "DeepSeek-V2", "<｜begin▁of▁sentence｜>", "", kDeepSeekV2},
    {"deepseek_v3", "DeepSeek-V3", "<｜begin▁of▁sentence｜>", "", kDeepSeekV3},
    {"deepseek_v31", "DeepSeek-V3.1 without thinking", "<｜begin▁of▁sentence｜>", "", kDeepSeekV31},
    {"glm4", "GLM-4.5 and 4.6 without thinking", "", "[gMASK]<sop>", kGlm, nullptr, false, true},
    {"kimi", "Kimi K2", "", "", kKimi},
    {"dots", "dots.llm1", "", "", kDots},
    {"granite", "Granite MoE", "", "", kGranite},
    {"phi", "Phi-3.5-MoE", "", "", kPhi, &kLastOfPhi},
    {"gpt_oss", "gpt-oss without thinking", "", kBeginOfGptOss, kGptOss, &kLastOfGptOss},
    {"minimax", "MiniMax-M2 without thinking", "]~!b[", "", kMiniMax},
    {"ernie", "ERNIE-4.5", "<|begin_of_sentence|>", "", kErnie},
    {"hunyuan", "Hunyuan-A13B", "<|startoftext|>", "", kHunyuan, &kLastOfHunyuan},
    {"olmoe", "OLMoE", "<|endoftext|>", "", kOlmoe, &kLastOfOlmoe, true},
};

}  // namespace

bool ChatTemplate::takes_turns() const { return last_answer().before == roles.back().before; }

std::span<const ChatTemplate> chat_templates() { return kTemplates; }

std::string chat_template_names(bool for_answers) {
  std::vector<std::string_view> names;
  for (const ChatTemplate& form : kTemplates)
    if (!for_answers || form.ends_answers()) names.push_back(form.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const ChatTemplate& find_chat_template(std::string_view name, bool for_answers) {
  const auto* const found =
      std::find_if(std::begin(kTemplates), std::end(kTemplates), [&](const ChatTemplate& t) { return t.name == name; });
  const std::string hint = "choose one of " + chat_template_names(for_answers);
  if (found == std::end(kTemplates))
    fail(Exit::usage, fmt::format("--chat: there is no template \"{}\"", printable(std::string(name))), hint);
  if (for_answers && !found->ends_answers())
    fail(Exit::usage, fmt::format("the chat template {} has no token that ends an answer", name), hint + ", or none");
  return *found;
}

}  // namespace mw
