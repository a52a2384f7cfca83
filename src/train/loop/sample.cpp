#include "train/loop/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "core/rng.h"
#include "engine/step.h"
#include "formats/tokens/text_stream.h"
#include "ops/elementwise.h"

namespace mw {
namespace {

int32_t draw(const std::vector<float>& logits, const SampleSpec& spec, float uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const size_t kept = spec.temperature == 0 ? 1
                      : spec.top_k == 0     ? order.size()
                                            : std::min(order.size(), static_cast<size_t>(spec.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), better);
  if (kept == 1) return order[0];
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum +=
        std::exp((static_cast<double>(logits[static_cast<size_t>(order[i])]) - logits[static_cast<size_t>(order[0])]) /
                 spec.temperature);
    cumulative.push_back(sum);
  }
  const auto chosen =
      std::upper_bound(cumulative.begin(), cumulative.end(), static_cast<double>(uniform) * sum) - cumulative.begin();
  return order[std::min(static_cast<size_t>(chosen), kept - 1)];
}

// The first rank that has logits. Ranks may differ in the last bit: this one decides.
int rank_of_choice(const Plan& plan) {
  const PipelineShape& pipeline = plan.pipeline;
  return rank_of_stage(pipeline, pipeline.stages() - 1) * (plan.mesh.world / pipeline.ranks);
}

// What every rank must know of a prompt and of the tokenizer.
struct Prompt {
  std::vector<int32_t> ids;  // at least one
  int64_t drawable = 0;      // ids below it have a text
  int32_t end = -1;          // id that ends a document; -1: none
};

Prompt encode_prompt(Tokenizer& tokenizer, const std::string& text, int64_t vocab) {
  Prompt prompt;
  tokenizer.encode(text, prompt.ids);
  prompt.drawable = std::min(tokenizer.vocab_size(), vocab);
  prompt.end = tokenizer.end_of_document().value_or(-1);
  if (prompt.ids.empty()) prompt.ids.push_back(std::max(prompt.end, 0));  // a document begins after one that ends
  for (const int32_t token : prompt.ids)
    if (token >= vocab)
      fail(Exit::config, fmt::format("sample.prompt holds token {} outside the vocabulary of {}", token, vocab),
           "a byte prompt needs a vocabulary of 256");
  return prompt;
}

// That of rank 0.
Prompt share_prompt(Comm& world, const Prompt& own) {
  std::vector<int32_t> all = {static_cast<int32_t>(own.drawable), own.end};
  all.insert(all.end(), own.ids.begin(), own.ids.end());
  const std::string bytes(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(int32_t));
  const std::string shared = broadcast_text(world, bytes, 0);
  all.resize(shared.size() / sizeof(int32_t));
  std::memcpy(all.data(), shared.data(), shared.size());
  return {{all.begin() + 2, all.end()}, all[0], all[1]};
}

// Logits of the token after `tokens`, on ranks that have the head; empty on the others. Collective.
std::vector<float> next_logits(Engine& engine, const std::vector<int32_t>& tokens) {
  const int64_t length = std::min<int64_t>(engine.plan.run.train.seq_len, std::ssize(tokens));
  const TensorView ids = engine.model->step_tokens().ids.at(0);
  engine.stream.queue().write(ids.data, tokens.data() + (std::ssize(tokens) - length),
                              static_cast<size_t>(length) * sizeof(int32_t));
  Batch batch{ids.as<int32_t>(), nullptr, 1, length};
  if (const TensorView starts = engine.model->step_tokens().document_starts; starts.data != nullptr) {
    fill_zero(engine.stream, starts.at(0));  // one document
    batch.document_starts = starts.as<int32_t>();
  }
  evaluate(engine, batch);
  if (!engine.plan.stages.back().has_head) return {};
  return engine.model->logits(length - 1, 1);
}

}  // namespace

std::string why_no_sample(const RunSpec& run) {
  // The one sequence is cut over TP, and a rank would count its part for a whole one.
  if (run.mesh.tp > 1 && run.moe.tp_mode != MoeTpMode::ted && run.moe.capacity_factor > 0 &&
      run.moe.capacity_domain == CapacityDomain::sequence)
    return "a capacity per sequence needs mesh.tp = 1 there";
  return "";
}

std::unique_ptr<Tokenizer> open_run_tokenizer(const RunSpec& run, const ModelSpec& model) {
  std::string path = run.sample.tokenizer;
  if (path.empty() && !run.hf_dir.empty() && has_tokenizer_file(run.hf_dir)) path = run.hf_dir;
  if (path.empty()) {
    if (run.data.kind == DataKind::text || model.vocab <= 256) return make_byte_tokenizer();
    fail(Exit::config,
         fmt::format("nothing says what text the model's {} tokens are: sample.tokenizer is empty", model.vocab),
         "set sample.tokenizer to the tokenizer.json, SentencePiece .model or folder that the data was tokenized with");
  }
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(path);
  if (tokenizer->vocab_size() > model.vocab)
    fail(Exit::config,
         fmt::format("the tokenizer {} has {} tokens, the model's vocabulary {}", path, tokenizer->vocab_size(),
                     model.vocab),
         "set sample.tokenizer to the one that the data was tokenized with");
  return tokenizer;
}

GeneratedText generate(Engine& engine, Tokenizer* tokenizer, const SampleSpec& spec,
                       const std::function<void(std::string_view)>& show) {
  const Prompt prompt = share_prompt(
      engine.world, tokenizer == nullptr ? Prompt() : encode_prompt(*tokenizer, spec.prompt, engine.plan.model.vocab));
  std::optional<TextStream> text;
  if (tokenizer != nullptr) text.emplace(*tokenizer, prompt.ids);
  const RngKey key = make_rng_key(static_cast<uint64_t>(spec.seed), "sample");
  const int chooser = rank_of_choice(engine.plan);
  std::vector<int32_t> tokens = prompt.ids;
  GeneratedText generated;
  while (generated.tokens < spec.tokens) {
    std::vector<float> logits = next_logits(engine, tokens);
    int32_t next = 0;
    if (engine.plan.rank == chooser) {
      logits.resize(static_cast<size_t>(prompt.drawable));
      next = draw(logits, spec, uniform_at(key, static_cast<uint64_t>(generated.tokens)));
    }
    engine.world.broadcast(std::as_writable_bytes(std::span(&next, 1)), chooser);
    tokens.push_back(next);
    generated.ended = next == prompt.end;
    if (generated.ended) break;
    ++generated.tokens;
    if (text) show(text->add(next));
  }
  if (text) show(text->finish());
  return generated;
}

}  // namespace mw
