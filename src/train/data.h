// Data order: which tokens step n sees. A pure function of (seed, samples consumed); the layout only decides who reads
// what.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/token_file.h"
#include "spec/plan.h"
#include "train/blend.h"
#include "train/step.h"

namespace mw {

// A pseudo-random permutation of 0..n-1 (Feistel network with cycle walking): element `index` in O(1), no table.
int64_t permute(int64_t index, int64_t n, uint64_t seed);

// A source and its share of the samples.
struct WeightedSource {
  double weight = 1;
  std::unique_ptr<TokenSource> source;
};

// Windows of seq_len + 1 tokens of one source, or of several in a blend: ids are the first seq_len, labels the last.
// Neighbouring windows of a source share one token.
class SampleOrder {
 public:
  // Errors: data, when a source has fewer than seq_len + 1 tokens.
  SampleOrder(std::unique_ptr<TokenSource> source, int64_t seq_len, int64_t vocab, uint64_t seed);
  SampleOrder(std::vector<WeightedSource> sources, int64_t seq_len, int64_t vocab, uint64_t seed);

  int64_t samples() const;  // windows of all sources
  size_t sources() const { return parts_.size(); }
  const TokenSource& source(size_t part = 0) const { return *parts_[part].source; }
  // Sample `number` of the endless order: each source is shuffled anew in every epoch of its own. Errors: data, when a
  // token lies outside the vocabulary. `starts`, unless empty: the position of the first token of each id's document
  // (formats/token_file.h); errors: config, where a source knows none.
  void shuffled(int64_t number, std::span<int32_t> ids, std::span<int32_t> labels,
                std::span<int32_t> starts = {}) const;
  // Window `index` of `count`, blended, and spread evenly over each source: validation.
  void spread(int64_t index, int64_t count, std::span<int32_t> ids, std::span<int32_t> labels,
              std::span<int32_t> starts = {}) const;
  // For the log, a line for each source: what it is, and how many epochs of it so many steps see (without steps:
  // nothing of epochs).
  std::string describe(int64_t steps, int64_t samples_per_step) const;

 private:
  struct Part {
    std::unique_ptr<TokenSource> source;
    int64_t samples;
    uint64_t seed;
  };
  void read(const Part& part, int64_t window, std::span<int32_t> ids, std::span<int32_t> labels,
            std::span<int32_t> starts) const;
  std::vector<Part> parts_;
  std::vector<BlendPart> shares_;  // of parts_
  int64_t seq_len_, vocab_;
};

// Opens the training or validation data of a run. For validation, null when the run has none.
std::unique_ptr<SampleOrder> open_samples(const RunSpec& run, int64_t vocab, bool validation);

// Reads some of every source, spread over it, so that data of another tokenizer is refused before the training. Errors:
// data, when a token lies outside the model's vocabulary.
void check_vocabulary(const SampleOrder& order, const RunSpec& run, int64_t vocab);

// This rank's micro-batches of the step that begins at sample `cursor`.
std::vector<MicroBatch> read_step(const SampleOrder& order, const Plan& plan, int64_t cursor);
// This rank's part of validation micro-batch `index` of `count`.
MicroBatch read_validation(const SampleOrder& order, const Plan& plan, int64_t index, int64_t count);

}  // namespace mw
