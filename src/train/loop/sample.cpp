#include "train/loop/sample.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/rng.h"
#include "formats/tokens/text_stream.h"
#include "train/loop/generation.h"
#include "train/loop/signals.h"
#include "train/loop/token_choice.h"

namespace mw {
namespace {

// The first rank that has logits. Ranks may differ in the last bit: this one decides.
int rank_of_choice(const Plan& plan) {
  const PipelineShape& pipeline = plan.pipeline;
  return rank_of_stage(pipeline, pipeline.stages() - 1) * (plan.mesh.world / pipeline.ranks);
}

}  // namespace

std::unique_ptr<Tokenizer> find_run_tokenizer(const RunSpec& run, const ModelSpec& model) {
  std::string path = run.sample.tokenizer;
  if (path.empty() && !run.hf_dir.empty() && has_tokenizer_file(run.hf_dir)) path = run.hf_dir;
  if (path.empty()) {
    const bool bytes = model.vocab <= 256 || (run.data.kind == DataKind::text && run.hf_dir.empty());
    return bytes ? make_byte_tokenizer() : nullptr;
  }
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(path);
  if (tokenizer->vocab_size() > model.vocab)
    fail(Exit::config,
         fmt::format("the tokenizer {} has {} tokens, the model's vocabulary {}", path, tokenizer->vocab_size(),
                     model.vocab),
         "set sample.tokenizer to the one that the data was tokenized with");
  return tokenizer;
}

std::unique_ptr<Tokenizer> open_run_tokenizer(const RunSpec& run, const ModelSpec& model) {
  std::unique_ptr<Tokenizer> tokenizer = find_run_tokenizer(run, model);
  if (tokenizer == nullptr)
    fail(Exit::config,
         fmt::format("nothing says what text the model's {} tokens are: sample.tokenizer is empty", model.vocab),
         "set sample.tokenizer to the tokenizer.json, SentencePiece .model or folder that the data was tokenized with");
  return tokenizer;
}

Sampler::Sampler(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec)
    : engine_(engine), tokenizer_(tokenizer), spec_(spec) {
  if (tokenizer != nullptr)
    tokens_ = {static_cast<int32_t>(std::min(tokenizer->vocab_size(), engine.plan.model.vocab)),
               tokenizer->end_of_document().value_or(-1)};
  engine.world.broadcast(std::as_writable_bytes(std::span(&tokens_, 1)), 0);
}

std::vector<int32_t> Sampler::encode(const std::string& text) const {
  const int64_t vocab = engine_.plan.model.vocab;
  std::vector<int32_t> ids;
  tokenizer_->encode(text, ids);
  for (const int32_t token : ids)
    if (token >= vocab)
      fail(Exit::config, fmt::format("the prompt holds token {} outside the vocabulary of {}", token, vocab),
           "set sample.tokenizer, or use a model with model.vocab = 256");
  return ids;
}

std::vector<int32_t> Sampler::next(Generation& generation) {
  const std::vector<float> logits = generation.next_logits();
  const RngKey key = make_rng_key(static_cast<uint64_t>(spec_.seed), "sample");
  const auto vocab = static_cast<size_t>(engine_.plan.model.vocab), drawable = static_cast<size_t>(tokens_.drawable);
  const int chooser = rank_of_choice(engine_.plan);
  std::vector<int32_t> next(generation.sequences());
  for (size_t b = 0; b < next.size() && engine_.plan.rank == chooser; ++b)
    next[b] = choose_token(std::span(logits).subspan(b * vocab, drawable), spec_,
                           uniform_at(key, (static_cast<uint64_t>(b) << 32) + draws_));
  ++draws_;
  engine_.world.broadcast(std::as_writable_bytes(std::span(next)), chooser);
  return next;
}

std::vector<int32_t> share_ids(Comm& world, std::vector<int32_t> ids) {
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  const std::string shared = broadcast_text(world, bytes, 0);
  ids.resize(shared.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), shared.data(), shared.size());
  return ids;
}

namespace {

constexpr int64_t kTokensBetweenStops = 16;

// The tokens that end a text. turns: of a conversation, on rank 0.
std::vector<int32_t> share_ends(Comm& world, const Sampler& sampler, const ChatTurns* turns) {
  std::vector<int32_t> ends = {sampler.end()};
  if (turns != nullptr) ends.insert(ends.end(), turns->ends().begin(), turns->ends().end());
  return share_ids(world, ends);
}

}  // namespace

std::vector<GeneratedText> generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                                    const std::vector<std::string>& prompts, const ShowText& show,
                                    const ChatTemplate* form) {
  Sampler sampler(engine, tokenizer, spec);
  std::optional<ChatTurns> turns;  // on rank 0
  if (form != nullptr && tokenizer != nullptr) turns.emplace(*form, *tokenizer);
  const std::vector<int32_t> ends = share_ends(engine.world, sampler, turns ? &*turns : nullptr);
  const auto encode = [&](const std::string& prompt) {
    return turns ? turns->encode({{ChatMessage{"user", prompt, {}}}}) : sampler.encode(prompt);
  };
  std::vector<std::vector<int32_t>> ids;
  std::vector<TextStream> texts;  // on rank 0
  for (const std::string& prompt : prompts) {
    ids.push_back(share_ids(engine.world, tokenizer == nullptr ? std::vector<int32_t>() : encode(prompt)));
    if (ids.back().empty()) ids.back().push_back(std::max(sampler.end(), 0));  // a document begins after one that ends
    if (tokenizer != nullptr) texts.emplace_back(*tokenizer, ids.back());
  }
  Generation generation(engine, ids);
  std::vector<GeneratedText> generated(prompts.size());
  for (int64_t t = 0; t < spec.tokens; ++t) {
    const std::vector<int32_t> next = sampler.next(generation);
    std::vector<std::vector<int32_t>> added;
    for (size_t b = 0; b < next.size(); ++b) {
      GeneratedText& text = generated[b];
      added.push_back({next[b]});  // after its end, a text goes on unseen until all have ended
      text.ended |= std::find(ends.begin(), ends.end(), next[b]) != ends.end();
      if (text.ended) continue;
      ++text.tokens;
      if (tokenizer != nullptr) show(b, texts[b].add(next[b]));
    }
    if (std::all_of(generated.begin(), generated.end(), [](const GeneratedText& text) { return text.ended; })) break;
    if (t % kTokensBetweenStops == 0 && stop_requested(engine.world)) break;
    generation.add(added);
  }
  for (size_t b = 0; b < texts.size(); ++b) show(b, texts[b].finish());
  return generated;
}

}  // namespace mw
