#include "train/loop/chat.h"

#include <algorithm>
#include <utility>

#include "formats/tokens/text_stream.h"
#include "train/loop/signals.h"

namespace mw {
namespace {
constexpr std::string_view kUser = "\nUser:", kAssistant = "\nAssistant:";
}  // namespace

std::string AnswerText::add(std::string_view piece) {
  held_ += piece;
  const size_t user = held_.find(kUser);
  ended_ |= user != std::string::npos;
  size_t shown = std::min(user, held_.size());
  if (!ended_) {
    const size_t most = std::min(held_.size(), kUser.size() - 1);
    for (size_t length = most; length > 0 && shown == held_.size(); --length)
      if (std::string_view(held_).substr(held_.size() - length) == kUser.substr(0, length)) shown -= length;
  }
  const std::string text = held_.substr(0, shown);
  held_.erase(0, shown);
  return text;
}

std::string AnswerText::finish() { return ended_ ? "" : std::exchange(held_, ""); }

Chat::Chat(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec, const ChatTemplate* form)
    : engine_(engine),
      tokenizer_(tokenizer),
      sampler_(engine, tokenizer, spec),
      most_(spec.tokens),
      again_(form != nullptr && !form->takes_turns()) {
  if (form != nullptr && tokenizer != nullptr) {
    turns_.emplace(*form, *tokenizer);
    answer_ends_ = turns_->ends();
  }
  engine.world.broadcast(std::as_writable_bytes(std::span(answer_ends_)), 0);
}

std::vector<int32_t> Chat::encode(const std::string& text) {
  if (turns_ && generation_ && !again_) return turns_->encode_next(text);
  if (turns_) {
    std::vector<ChatMessage> messages = messages_;
    messages.push_back({"user", text, {}});
    std::vector<int32_t> ids = turns_->encode(messages);
    if (again_) messages_ = std::move(messages);
    return ids;
  }
  std::string turn = generation_ ? std::string(kUser) : std::string(kUser.substr(1));
  if (user_began_) turn.clear();
  return sampler_.encode(fmt::format("{} {}{}", turn, text, kAssistant));
}

bool Chat::answer(std::vector<int32_t> turn, const std::function<void(std::string_view)>& show) {
  turn = share_ids(engine_.world, std::move(turn));
  if (turn.empty()) return false;
  if (generation_ && !again_) generation_->add({turn});
  else generation_.emplace(engine_, std::vector<std::vector<int32_t>>{turn});
  std::optional<TextStream> stream;  // on rank 0
  if (tokenizer_ != nullptr) stream.emplace(*tokenizer_, turn);
  AnswerText text;
  std::string answer;
  int64_t ended = 0;
  bool stopped = false;
  for (int64_t t = 0; t < most_ && ended == 0 && !stopped; ++t) {
    const int32_t next = sampler_.next(*generation_).front();
    if (next == answer_ends_[0] || next == answer_ends_[1]) break;  // the next turn begins with the end of this answer
    generation_->add({{next}});
    if (next == sampler_.end()) break;
    if (stream) {
      const std::string piece = stream->add(next);
      answer += piece;
      show(turns_ ? piece : text.add(piece));
      ended = text.ended() ? 1 : 0;
    }
    engine_.world.broadcast(std::as_writable_bytes(std::span(&ended, 1)), 0);
    stopped = stop_requested(engine_.world);
  }
  if (stream) {
    const std::string rest = stream->finish();
    show((turns_ ? rest : text.add(rest)) + text.finish());
    if (again_) messages_.push_back({"assistant", answer + rest, {}});
  }
  user_began_ = ended != 0;
  return !stopped;
}

}  // namespace mw
