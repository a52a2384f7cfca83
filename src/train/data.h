// Data order: which tokens step n sees. A pure function of (seed, samples consumed); the layout only decides who reads
// what.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/token_file.h"
#include "spec/plan.h"
#include "train/step.h"

namespace mw {

// A pseudo-random permutation of 0..n-1 (Feistel network with cycle walking): element `index` in O(1), no table.
int64_t permute(int64_t index, int64_t n, uint64_t seed);

// Windows of seq_len + 1 tokens of a source: ids are the first seq_len, labels the last. Neighbouring windows share one
// token.
class SampleOrder {
 public:
  // Errors: data, when the source has fewer than seq_len + 1 tokens.
  SampleOrder(std::unique_ptr<TokenSource> source, int64_t seq_len, int64_t vocab, uint64_t seed);

  int64_t samples() const { return samples_; }  // per epoch
  const TokenSource& source() const { return *source_; }
  // Sample `number` of the endless shuffled order. Errors: data, when a token lies outside the vocabulary.
  void shuffled(int64_t number, std::span<int32_t> ids, std::span<int32_t> labels) const;
  // Window `index` of `count` spread evenly over the source: validation.
  void spread(int64_t index, int64_t count, std::span<int32_t> ids, std::span<int32_t> labels) const;

 private:
  void read(int64_t window, std::span<int32_t> ids, std::span<int32_t> labels) const;
  std::unique_ptr<TokenSource> source_;
  int64_t seq_len_, vocab_, samples_;
  uint64_t seed_;
};

// Opens the training or validation data of a run. For validation, null when the run has none.
std::unique_ptr<SampleOrder> open_samples(const RunSpec& run, int64_t vocab, bool validation);

// This rank's micro-batches of the step that begins at sample `cursor`, read into `into`.
std::vector<Batch> read_step(const SampleOrder& order, const Plan& plan, int64_t cursor, const StepTokens& into);
// This rank's part of validation micro-batch `index` of `count`, read into the first micro-batch of `into`.
Batch read_validation(const SampleOrder& order, const Plan& plan, int64_t index, int64_t count, const StepTokens& into);

}  // namespace mw
