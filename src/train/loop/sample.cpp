#include "train/loop/sample.h"

#include <algorithm>
#include <cstring>

#include "core/rng.h"
#include "formats/tokens/text_stream.h"
#include "train/loop/generation.h"
#include "train/loop/token_choice.h"

namespace mw {
namespace {

// The first rank that has logits. Ranks may differ in the last bit: this one decides.
int rank_of_choice(const Plan& plan) {
  const PipelineShape& pipeline = plan.pipeline;
  return rank_of_stage(pipeline, pipeline.stages() - 1) * (plan.mesh.world / pipeline.ranks);
}

// What every rank must know of a tokenizer.
struct TokenIds {
  int32_t drawable = 0;  // ids below it have a text
  int32_t end = -1;      // id that ends a document; -1: none
};

TokenIds share_ids(Comm& world, const Tokenizer* tokenizer, int64_t vocab) {
  TokenIds ids;
  if (tokenizer != nullptr)
    ids = {static_cast<int32_t>(std::min(tokenizer->vocab_size(), vocab)), tokenizer->end_of_document().value_or(-1)};
  world.broadcast(std::as_writable_bytes(std::span(&ids, 1)), 0);
  return ids;
}

// The ids of a text, at least one, as rank 0 encodes it.
std::vector<int32_t> share_prompt(Comm& world, Tokenizer* tokenizer, const std::string& text, int32_t end,
                                  int64_t vocab) {
  std::vector<int32_t> ids;
  if (tokenizer != nullptr) {
    tokenizer->encode(text, ids);
    if (ids.empty()) ids.push_back(std::max(end, 0));  // a document begins after one that ends
    for (const int32_t token : ids)
      if (token >= vocab)
        fail(Exit::config, fmt::format("the prompt holds token {} outside the vocabulary of {}", token, vocab),
             "a byte prompt needs a vocabulary of 256");
  }
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  const std::string shared = broadcast_text(world, bytes, 0);
  ids.resize(shared.size() / sizeof(int32_t));
  std::memcpy(ids.data(), shared.data(), shared.size());
  return ids;
}

}  // namespace

std::unique_ptr<Tokenizer> find_run_tokenizer(const RunSpec& run, const ModelSpec& model) {
  std::string path = run.sample.tokenizer;
  if (path.empty() && !run.hf_dir.empty() && has_tokenizer_file(run.hf_dir)) path = run.hf_dir;
  if (path.empty()) return run.data.kind == DataKind::text || model.vocab <= 256 ? make_byte_tokenizer() : nullptr;
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

std::vector<GeneratedText> generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                                    const std::vector<std::string>& prompts, const ShowText& show) {
  const int64_t vocab = engine.plan.model.vocab;
  const TokenIds tokens = share_ids(engine.world, tokenizer, vocab);
  std::vector<std::vector<int32_t>> ids;
  std::vector<TextStream> texts;  // on rank 0
  for (const std::string& prompt : prompts) {
    ids.push_back(share_prompt(engine.world, tokenizer, prompt, tokens.end, vocab));
    if (tokenizer != nullptr) texts.emplace_back(*tokenizer, ids.back());
  }
  const RngKey key = make_rng_key(static_cast<uint64_t>(spec.seed), "sample");
  const int chooser = rank_of_choice(engine.plan);
  Generation generation(engine, ids);
  std::vector<GeneratedText> generated(prompts.size());
  std::vector<int32_t> next(prompts.size());
  for (int64_t t = 0; t < spec.tokens; ++t) {
    const std::vector<float> logits = generation.next_logits();
    for (size_t b = 0; b < next.size() && engine.plan.rank == chooser; ++b)
      next[b] =
          choose_token(std::span(logits).subspan(b * static_cast<size_t>(vocab), static_cast<size_t>(tokens.drawable)),
                       spec, uniform_at(key, (static_cast<uint64_t>(b) << 32) + static_cast<uint64_t>(t)));
    engine.world.broadcast(std::as_writable_bytes(std::span(next)), chooser);
    std::vector<std::vector<int32_t>> added;
    for (size_t b = 0; b < next.size(); ++b) {
      GeneratedText& text = generated[b];
      added.push_back({next[b]});  // after its end, a text goes on unseen until all have ended
      text.ended |= next[b] == tokens.end;
      if (text.ended) continue;
      ++text.tokens;
      if (tokenizer != nullptr) show(b, texts[b].add(next[b]));
    }
    if (std::all_of(generated.begin(), generated.end(), [](const GeneratedText& text) { return text.ended; })) break;
    generation.add(added);
  }
  for (size_t b = 0; b < texts.size(); ++b) show(b, texts[b].finish());
  return generated;
}

}  // namespace mw
