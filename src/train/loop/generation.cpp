#include "train/loop/generation.h"

#include <algorithm>

#include "engine/step.h"
#include "ops/cross_entropy.h"

namespace mw {

Generation::Generation(Engine& engine, const std::vector<std::vector<int32_t>>& prompts) : engine_(engine) {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
  for (const std::vector<int32_t>& prompt : prompts) {
    padding_.push_back(static_cast<int64_t>(longest - prompt.size()));
    tokens_.emplace_back(longest - prompt.size(), prompt.front());
    tokens_.back().insert(tokens_.back().end(), prompt.begin(), prompt.end());
  }
}

void Generation::add(const std::vector<std::vector<int32_t>>& added) {
  for (size_t b = 0; b < tokens_.size(); ++b) tokens_[b].insert(tokens_[b].end(), added[b].begin(), added[b].end());
}

void Generation::shorten(int64_t kept) {
  const int64_t dropped = std::ssize(tokens_.front()) - kept;
  for (size_t b = 0; b < tokens_.size(); ++b) {
    tokens_[b].erase(tokens_[b].begin(), tokens_[b].begin() + dropped);
    padding_[b] = std::max<int64_t>(padding_[b] - dropped, 0);
  }
  computed_ = 0;
}

std::vector<float> Generation::next_logits() {
  const int64_t most = engine_.plan.run.train.seq_len, sequences = std::ssize(tokens_);
  if (std::ssize(tokens_.front()) > most) shorten(std::max<int64_t>(most / 2, 1));
  const int64_t length = std::ssize(tokens_.front()) - computed_;
  MicroBatch added;
  added.sequences = sequences;
  added.seq_len = length;
  const bool has_documents = engine_.plan.run.data.document_mask;
  for (size_t b = 0; b < tokens_.size(); ++b) {
    added.ids.insert(added.ids.end(), tokens_[b].begin() + computed_, tokens_[b].end());
    for (int64_t t = computed_; has_documents && t < std::ssize(tokens_[b]); ++t)
      added.document_starts.push_back(static_cast<int32_t>(t < padding_[b] ? 0 : padding_[b]));
  }
  added.labels.assign(added.ids.size(), kIgnoreLabel);
  Batch batch = stage(engine_, std::span(&added, 1)).front();
  batch.labels = nullptr;
  batch.past = computed_;
  evaluate(engine_, batch);
  computed_ += length;
  if (!engine_.plan.stages.back().has_head) return {};
  if (length == 1) return engine_.model->logits(0, sequences);
  std::vector<float> logits;
  for (int64_t b = 0; b < sequences; ++b) {
    const std::vector<float> last = engine_.model->logits((b + 1) * length - 1, 1);
    logits.insert(logits.end(), last.begin(), last.end());
  }
  return logits;
}

}  // namespace mw
