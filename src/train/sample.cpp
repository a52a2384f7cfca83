#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "ops/elementwise.h"
#include "train/step.h"

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

}  // namespace

std::string why_no_sample(const ModelSpec& model, const RunSpec& run) {
  if (model.vocab > 256) return "this model's tokens are not bytes";
  // The one sequence is cut over TP, and a rank would count its part for a whole one.
  if (run.mesh.tp > 1 && run.moe.tp_mode != "ted" && run.moe.capacity_factor > 0 &&
      run.moe.capacity_domain == "sequence")
    return "a capacity per sequence needs mesh.tp = 1 there";
  return "";
}

std::vector<int32_t> generate(Engine& engine, const std::vector<int32_t>& prompt, const SampleSpec& spec,
                              const std::function<bool(int32_t)>& emit) {
  const int64_t vocab = engine.plan.model.vocab, window = engine.plan.run.train.seq_len;
  std::vector<int32_t> tokens = prompt;
  if (tokens.empty()) tokens.push_back(0);
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      fail(Exit::config, fmt::format("sample.prompt holds token {} outside the vocabulary of {}", token, vocab),
           "a byte prompt needs a vocabulary of 256");
  const RngKey key = make_rng_key(static_cast<uint64_t>(spec.seed), "sample");
  const int chooser = rank_of_choice(engine.plan);
  std::vector<int32_t> generated;
  for (int64_t i = 0; i < spec.tokens; ++i) {
    const int64_t length = std::min<int64_t>(window, static_cast<int64_t>(tokens.size()));
    const TensorView ids = engine.model.step_tokens().ids.at(0);
    engine.stream.queue().write(ids.data, tokens.data() + (static_cast<int64_t>(tokens.size()) - length),
                                static_cast<size_t>(length) * sizeof(int32_t));
    Batch batch{ids.as<int32_t>(), nullptr, 1, length};
    if (const TensorView starts = engine.model.step_tokens().document_starts; starts.data != nullptr) {
      fill_zero(engine.stream, starts.at(0));  // one document
      batch.document_starts = starts.as<int32_t>();
    }
    evaluate(engine, batch);
    std::vector<float> logits;  // of the last token
    if (engine.plan.stages.back().has_head) logits = engine.model.logits(length - 1, 1);
    int32_t next = 0;
    if (engine.plan.rank == chooser) next = draw(logits, spec, uniform_at(key, static_cast<uint64_t>(i)));
    engine.world.broadcast(std::as_writable_bytes(std::span(&next, 1)), chooser);
    tokens.push_back(next);
    generated.push_back(next);
    if (emit && !emit(next)) break;
  }
  return generated;
}

}  // namespace mw
